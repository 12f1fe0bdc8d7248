"""A trial as the judge sees it: by training step and rank."""

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from ddparity.trace import DigestRow, Event, EventRow, RankStatus, RankTrace, SampleRow, Site, Trial, read_trial

from ._comm_run import CommRun, load_comm

Key = tuple[str, str]
"""Name and part of what was digested."""
_AROUND = (Site.PARAMETER, Site.BUFFER_AT_START, Site.PARAMETER_LEFT, Site.BUFFER)
"""What is recorded before and after a window's steps."""
Call = tuple[int, int]
"""Which call of a module within a forward, and how many of the step's updates come before it."""


@dataclass
class RankStep:
    """What one rank recorded in one training step."""

    digests: dict[str, dict[Key, list[DigestRow]]] = field(default_factory=lambda: defaultdict(dict))
    samples: list[SampleRow] = field(default_factory=list)
    events: dict[str, list[EventRow]] = field(default_factory=lambda: defaultdict(list))
    complete: bool = False

    def rows(self, site: Site, name: str, part: str = "") -> list[DigestRow]:
        """Return the digests of one thing in the order in which they were taken."""
        return self.digests[site].get((name, part), []) if site in self.digests else []

    def reached(self, site: Site) -> bool:
        """Whether this rank recorded all that it has of a parameter-like site in this step, as far as one can tell."""
        if site in (Site.SYNCED_GRADIENT, Site.STEP_GRADIENT):
            return self.complete or bool(self.events.get(Event.OPTIMIZER))
        return self.complete or site in (Site.PARAMETER, Site.BUFFER_AT_START, Site.BUFFER)

    @cached_property
    def batches(self) -> dict[int, np.ndarray]:
        """Batch number -> identities of its samples, of training calls only."""
        return {row.batch: row.ids for row in self.samples if row.training}

    @cached_property
    def pieces(self) -> dict[int, tuple[int, int, int]]:
        """Batch number -> which slice of each sample it holds, (start, stop, total); only batches of slices."""
        return {row.batch: (row.start, row.stop, row.total) for row in self.samples if row.training and row.total}

    @cached_property
    def updates(self) -> list[EventRow]:
        """The updates of the step: one with one optimizer, two in a GAN's step."""
        return sorted(self.events.get(Event.OPTIMIZER, []), key=lambda event: event.seq)

    @cached_property
    def _readings(self) -> list[int]:
        """When each update read its gradients: as it began, or after the first evaluation of its closure."""
        rows = {name: found[0].seq for (name, _), found in self.digests.get(Site.SYNCED_GRADIENT, {}).items()}
        return [
            max([event.seq, *(rows.get(name, 0) for group in event.data.get("params", []) for name in group)])
            for event in self.updates
        ]

    def num_updates_before(self, seq: int) -> int:
        """Return how many updates had read their gradients when a row was written."""
        return sum(reading < seq for reading in self._readings)

    def call_of(self, row: DigestRow) -> Call:
        """Return which call of its module a row was taken in."""
        return row.occurrence, self.num_updates_before(row.seq)

    def update_of(self, name: str) -> int:
        """Return which update of the step moves a parameter, from 0; that of the last one if none names it."""
        for number, event in enumerate(self.updates):
            if any(name in group for group in event.data.get("params", [])):
                return number
        return max(len(self.updates) - 1, 0)

    @cached_property
    def passes(self) -> list[EventRow]:
        """The backward passes whose gradients count: ``backward`` calls, or ``autograd.grad`` if there are none."""
        every = self.events.get(Event.BACKWARD, [])
        return [e for e in every if e.name == "backward"] or every

    @cached_property
    def pass_numbers(self) -> set[int]:
        """The numbers of those passes."""
        return {int(e.data.get("backward", 0)) for e in self.passes}


@dataclass
class Run:
    """A trial, its ranks and their steps."""

    trial: Trial
    ranks: dict[int, dict[int, RankStep]]
    """Rank -> training step -> what was recorded."""

    @property
    def world_size(self) -> int:
        """Number of ranks that there should be."""
        return max(self.trial.world_size, len(self.ranks))

    @cached_property
    def complete_steps(self) -> list[int]:
        """Steps that every rank finished and recorded."""
        if not self.ranks or len(self.ranks) < self.world_size:
            return []
        per_rank = [{s for s, step in steps.items() if step.complete} for steps in self.ranks.values()]
        return sorted(set.intersection(*per_rank))

    @cached_property
    def digested_steps(self) -> list[int]:
        """Steps in which at least one rank recorded tensors."""
        found = {s for steps in self.ranks.values() for s, step in steps.items() if has_tensors(step)}
        return sorted(found)

    @cached_property
    def comm(self) -> CommRun:
        """What the ranks asked of each other; read once for all that look at it.

        Raises:
            TraceError: If a ring is corrupt.
        """
        return load_comm(self.trial.folder)

    def events(self, kind: Event, rank: int | None = None) -> list[EventRow]:
        """Return all events of a kind, of one rank or of the lowest that there is."""
        if rank is None:
            rank = min(self.ranks, default=0)
        steps = self.ranks.get(rank, {})
        return [event for step in sorted(steps) for event in steps[step].events.get(kind, [])]

    def partial_reasons(self) -> list[str]:
        """Say what is missing of this trial's trace, in words; empty when it is whole."""
        reasons = []
        total, name = self.world_size, self.trial.facts.name
        if not self.ranks:
            return [f"{name}: no rank recorded anything"]
        if len(self.ranks) < total:
            gone = self.trial.missing_ranks
            which = f"rank{'s' if len(gone) > 1 else ''} {listed(gone)}"
            reasons.append(f"{name}: {len(self.ranks)} of {total} ranks; no trace of {which}")
        for rank in self.trial.ranks:
            reasons += [f"{name} rank {rank.facts.rank}: {reason}" for reason in _rank_reasons(rank)]
        return reasons


def load_run(folder: Path) -> Run:
    """Read a trial and sort what it recorded by rank and step.

    Raises:
        TraceError: If a file is missing or corrupt.
    """
    trial = read_trial(folder)
    return Run(trial, {rank.facts.rank: _steps_of(rank) for rank in trial.ranks})


def _steps_of(rank: RankTrace) -> dict[int, RankStep]:
    steps: dict[int, RankStep] = defaultdict(RankStep)
    whole = _whole_until(rank)
    void = max((event.seq for event in rank.events if event.kind == Event.START_OVER), default=-1)
    for row in rank.digests:
        if void < row.seq <= whole:
            steps[row.step].digests[row.site.site].setdefault((row.site.name, row.site.part), []).append(row)
    for sample in rank.samples:
        if void < sample.seq <= whole:
            steps[sample.step].samples.append(sample)
    for event in rank.events:
        if void < event.seq <= whole:
            steps[event.step].events[event.kind].append(event)
            if event.kind == Event.STEP:
                steps[event.step].complete = True
    return dict(steps)


def _whole_until(rank: RankTrace) -> float:
    """Return the number of the last row before which none is missing: rows are numbered across the streams.

    Of a trace that was cut short, what comes after it is left out: a row that another stream lost is no deviation.
    """
    found = sorted(row.seq for rows in (rank.digests, rank.samples, rank.events) for row in rows)
    if not rank.truncated:
        return math.inf
    return next((number for number, seq in enumerate(found) if seq != number + 1), len(found))


def has_tensors(step: RankStep) -> bool:
    """Whether tensors of a step were recorded, beyond what surrounds a window."""
    return any(site not in _AROUND for site, found in step.digests.items() if found)


def _rank_reasons(rank: RankTrace) -> list[str]:
    reasons = list(rank.facts.partial)
    if rank.facts.status is RankStatus.RAISED:
        at = f" at {rank.facts.error_at[-1]}" if rank.facts.error_at else ""
        reasons.append(f"ended by {rank.facts.error_type}{at}")
    elif rank.facts.status is RankStatus.RUNNING:
        reasons.append("ended without its end mark (killed, or its process aborted)")
    if rank.truncated:
        reasons.append(f"streams cut short: {', '.join(sorted(set(rank.truncated)))}")
    return reasons


def listed(ranks: Iterable[int]) -> str:
    """Return ranks as ``0``, ``0, 2`` or ``0-3``."""
    found = sorted(ranks)
    if len(found) > 2 and found == list(range(found[0], found[-1] + 1)):
        return f"{found[0]}-{found[-1]}"
    return ", ".join(map(str, found))
