"""What an export holds of a trial: numbers by rank and step, facts, the last verdict; names and secrets taken out.

Nothing else is read: no digest, no identity of a sample, no banked batch. Texts go through what a bundle's go through.
"""

import contextlib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from ddparity._errors import DdparityError, UsageError
from ddparity.bundle._scrub import Scrubber
from ddparity.judge import Verdict, compare_and_measure
from ddparity.judge._facts import flat_facts
from ddparity.judge._memory_run import load_memory
from ddparity.judge._run import Run, load_run
from ddparity.report import render_html
from ddparity.trace import Event, EventRow, RankFacts, RankTrace, Trial, TrialFacts
from ddparity.trials import Ledger, Store

_NS = 1e9


@dataclass(frozen=True, slots=True)
class Point:
    """One number: what it is of, on which rank, at which step, when (nanoseconds since 1970)."""

    name: str
    rank: int
    step: int
    time_ns: int
    value: float


@dataclass(frozen=True, kw_only=True)
class Export:
    """A trial as it leaves for another tool.

    Attributes:
        facts: Of the trial.
        label: The trial's name and the end of its id: short, and no other trial's.
        settings: Flat facts, name -> value.
        points: Every number, rank by rank.
        verdict: Of the last comparison in which it was the candidate, if there was one.
        report: That verdict as an HTML page; empty without one.
    """

    facts: TrialFacts
    label: str
    settings: dict[str, Any]
    points: list[Point]
    verdict: Verdict | None
    report: str

    @property
    def ranks(self) -> list[int]:
        """The ranks that have numbers."""
        return sorted({point.rank for point in self.points})


def read_export(store: Store, name: str) -> Export:
    """Read what of a trial is exported.

    Raises:
        TrialNotFound: There is no such trial.
        TraceError: A file of it cannot be read.
        UsageError: Something that must not leave is still in a text.
    """
    folder = store.find(name)
    run = load_run(folder)
    scrub = Scrubber([run.trial])
    trial = _scrubbed(run.trial, scrub)
    verdict, report = _last_verdict(store, folder, scrub)
    facts = trial.facts
    return Export(
        facts=facts,
        label=f"{run.trial.facts.name}-{run.trial.facts.id.rpartition('-')[2]}",
        settings=flat_facts(trial) | {"command": " ".join(facts.command)},
        points=[Point(scrub.text(p.name), p.rank, p.step, p.time_ns, p.value) for p in points_of(run)],
        verdict=verdict,
        report=report,
    )


def points_of(run: Run) -> Iterator[Point]:
    """Yield the numbers of a run: losses, metrics, learning rates, norms, memory, times."""
    for rank in sorted(run.ranks):
        for step, recorded in sorted(run.ranks[rank].items()):
            losses = [event for event in recorded.passes if event.value is not None]
            if losses:
                mean = sum(event.value or 0.0 for event in losses) / len(losses)
                yield Point("loss", rank, step, losses[-1].time_ns, mean)
            for kind in (Event.CLIP, Event.SCALE, Event.OPTIMIZER, Event.METRIC):
                for event in recorded.events.get(kind, []):
                    yield from _of_event(event, rank)
        yield from _of_memory(run, rank)
        yield from _of_time(run, rank)


def _of_event(event: EventRow, rank: int) -> Iterator[Point]:
    if event.kind == Event.OPTIMIZER:
        groups = event.data.get("groups")
        for number, group in enumerate(groups if isinstance(groups, list) else []):
            rate = group.get("lr") if isinstance(group, dict) else None
            if isinstance(rate, (int, float)):
                name = "learning_rate" if number == 0 else f"learning_rate/group_{number}"
                yield Point(name, rank, event.step, event.time_ns, float(rate))
    elif event.value is not None:
        own = event.data.get("own_step")
        step = own if isinstance(own, int) and own >= 0 else event.step
        name = {Event.CLIP: "grad_norm", Event.SCALE: "loss_scale"}.get(Event(event.kind), f"metric/{event.name}")
        yield Point(name, rank, step, event.time_ns, event.value)


def _of_memory(run: Run, rank: int) -> Iterator[Point]:
    times = {event.step: event.time_ns for event in run.events(Event.MEMORY, rank)}
    for step in load_memory(run)[rank].steps:
        when = times.get(step.step, 0)
        yield Point("memory/held_bytes", rank, step.step, when, float(step.end))
        yield Point("memory/peak_bytes", rank, step.step, when, float(step.peak[0]))


def _of_time(run: Run, rank: int) -> Iterator[Point]:
    ends = [(event.step, event.time_ns) for event in run.events(Event.STEP, rank)]
    for (before, begin), (step, end) in itertools.pairwise(ends):
        if step == before + 1 and end >= begin:
            yield Point("step_seconds", rank, step, end, (end - begin) / _NS)
    loads = next(each for each in run.trial.ranks if each.facts.rank == rank).loads
    waits: dict[int, tuple[int, int]] = {}
    for step, when, wait in zip(loads.step.tolist(), loads.time_ns.tolist(), loads.wait_ns.tolist(), strict=True):
        waits[step] = (when, waits.get(step, (0, 0))[1] + max(wait, 0))
    for step, (when, wait) in sorted(waits.items()):
        yield Point("data_wait_seconds", rank, step, when, wait / _NS)


def _scrubbed(trial: Trial, scrub: Scrubber) -> Trial:
    facts = msgspec.convert(scrub.value(msgspec.to_builtins(trial.facts)), TrialFacts)
    ranks = [
        RankTrace(each.folder, msgspec.convert(scrub.value(msgspec.to_builtins(each.facts)), RankFacts))
        for each in trial.ranks
    ]
    return Trial(trial.folder, facts, ranks)


def _last_verdict(store: Store, folder: Path, scrub: Scrubber) -> tuple[Verdict | None, str]:
    """Return the verdict of the last comparison that judged this trial, and its page."""
    with Ledger(store) as ledger:
        rows = [row for row in ledger.comparisons(folder.name) if row.candidate == folder.name]
    if not rows:
        return None, ""
    kept = msgspec.json.decode(rows[0].verdict)
    pictures = None
    with contextlib.suppress(DdparityError, OSError):  # they are not kept with the verdict, and the control may be gone
        measured = compare_and_measure(store.path(rows[0].control), folder, allow_stale=True).pictures
        pictures = msgspec.convert(scrub.value(msgspec.to_builtins(measured)), type(measured))
    verdict = msgspec.convert(scrub.value(kept), Verdict)
    report = render_html(verdict, pictures)
    for name in scrub.names:
        if name in report:
            raise UsageError(f"The report still names {name!r}: nothing was exported. Please report this.")
    return verdict, report


def told(verdict: Verdict) -> list[tuple[str, str, str]]:
    """Return a row for each layer: its name, its status, why."""
    return [(name, layer.status.value, layer.reason) for name, layer in verdict.layers.items()]
