"""One training step of a comparison: both sides, the plan, the floors, and what was already found."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from ddparity.trace import DigestRow, Event, Site

from . import _causes
from ._floors import Floors
from ._left import Left
from ._plan import ReductionPlan, SamplePlan
from ._run import Call, Key, RankStep
from ._verdict import Cause, Finding, Floor, Phase


@dataclass(frozen=True)
class Measurement:
    """One comparison with the control, whether it deviates or not.

    Attributes:
        error: Relative error of the logical tensor.
        floor: What it was held against.
        by_rank: Rank -> relative error of that rank's own copy, where each rank holds one.
    """

    step: int
    phase: Phase
    name: str
    error: float
    floor: float
    by_rank: dict[int, float]


@dataclass
class Tally:
    """What a layer's examination adds up to besides its findings.

    Attributes:
        checked: Number of comparisons made.
        unproved: What could not be compared, and why.
        random: Module at which random masks separated the runs, if any.
        tainted: Parameters that a scale-free optimizer moves by rounding alone.
        moved: Shape -> how far such a parameter of it was at most from the control's, as a Euclidean distance.
        drift: Largest relative error of a parameter that was accepted so far.
        hidden: Steps whose floor is so high that it may hide a fault.
        scales: Largest size so far that rounding in a parameter's gradient is relative to.
        cancelled: Largest ratio so far of that size to the gradient itself.
        broadcasts_buffers: Whether a wrapper of the candidate broadcasts rank 0's buffers before every forward.
        mended: Whether in the last step that tells, ranks that parted ended with the control's parameters.
        micro_batches: How many of them steps had so far that agreed.
        unplaced: Parameters whose parts do not make up the control's, so that nothing of theirs can be held against it.
        lost_ties: Parameters that modules share in the control and not in the candidate.
        measured: The comparisons, in the order in which they were made; None where nobody asks for them.
    """

    checked: int = 0
    unproved: dict[str, str] = field(default_factory=dict)
    random: str | None = None
    tainted: set[str] = field(default_factory=set)
    moved: dict[tuple[int, ...], float] = field(default_factory=dict)
    drift: float = 0.0
    hidden: set[int] = field(default_factory=set)
    scales: dict[str, float] = field(default_factory=dict)
    cancelled: dict[str, float] = field(default_factory=dict)
    lost_ties: set[str] = field(default_factory=set)
    unplaced: set[str] = field(default_factory=set)
    broadcasts_buffers: bool = False
    mended: bool = False
    micro_batches: set[int] = field(default_factory=set)
    measured: list[Measurement] | None = None


@dataclass
class StepContext:
    """Everything the checks of one step need."""

    step: int
    control: RankStep
    candidate: dict[int, RankStep]
    samples: SamplePlan
    reduction: ReductionPlan
    floors: Floors
    tally: Tally
    elsewhere: RankStep | None = None
    """Another step of the control that recorded tensors, to tell what depends on the batch."""
    left: Left = field(default_factory=Left)
    """What the step left to the next one."""
    rounds: dict[int, int] = field(default_factory=dict)
    """Of findings, by ``id``: how many of the step's updates come before what was found."""

    @property
    def comparable(self) -> bool:
        """Whether numbers of this step may be held against the control's: same samples, same masks."""
        return self.samples.proved and self.tally.random is None

    def accepted(self, error: float) -> None:
        """Raise the floor of what is judged from here on in this step by an error that was accepted."""
        self.floors = replace(self.floors, upstream=max(self.floors.upstream, error))

    def measured(
        self, phase: Phase, name: str, error: float, floor: float, by_rank: dict[int, float] | None = None
    ) -> None:
        """Keep a comparison for the map of errors."""
        if self.tally.measured is not None:
            self.tally.measured.append(Measurement(self.step, phase, name, error, floor, by_rank or {}))

    @property
    def micro_batches(self) -> int:
        """Number of backward passes of the candidate's step."""
        return max((len(step.passes) for step in self.candidate.values()), default=0)

    @property
    def num_ranks(self) -> int:
        """Number of ranks of the candidate."""
        return len(self.candidate)

    @property
    def share(self) -> float:
        """Weight of each part's loss: 1 where gradients are summed over the parts, else one over their number.

        A factor that clipping or scaling by hand puts between local and final gradients says nothing about losses.
        """
        return 1.0 if self.reduction.observed == "sum" else 1.0 / max(len(self.samples.groups), 1)

    @property
    def multiplicity(self) -> int:
        """How many ranks hold each sample."""
        return len(self.samples.groups[0]) if self.samples.groups else 1

    def calls(self, site: Site) -> Iterator[tuple[Key, Call, list[DigestRow]]]:
        """Yield the control's modules in the order in which they ran, each call of a forward on its own."""
        found: dict[tuple[Key, Call], list[DigestRow]] = {}
        for key, rows in self.control.digests.get(site, {}).items():
            for row in rows:
                found.setdefault((key, self.control.call_of(row)), []).append(row)
        for (key, call), rows in sorted(found.items(), key=lambda item: item[1][0].seq):
            yield key, call, rows

    def held(self, site: Site, name: str, part: str = "") -> dict[int, DigestRow | None]:
        """Return the last digest of a parameter-like thing on every rank that is responsible for it.

        Those are all ranks that came so far in this step: one that was killed in the middle of it lacks nothing. Of
        pipeline stages only those that have a gradient of it, since the others keep a copy that nothing updates; and
        where ranks divide parameters among them, as experts or as their share of the update, only its owners.
        """
        there = {rank: step for rank, step in self.candidate.items() if step.reached(site)}
        held = {rank: next(iter(step.rows(site, name, part)[-1:]), None) for rank, step in there.items()}
        held = {rank: row for rank, row in held.items() if row is not None or not self._left_to_others(rank, name)}
        if not self.samples.foreign or site in (Site.BUFFER, Site.BUFFER_AT_START):
            return held
        return {rank: row for rank, row in held.items() if self.candidate[rank].rows(Site.SYNCED_GRADIENT, name)}

    def _left_to_others(self, rank: int, name: str) -> bool:
        """Whether a rank's optimizers leave a parameter to other ranks, and these leave others to it in turn.

        Where it lacks a parameter and has none to itself nothing is divided: there it was left out.
        """
        mine = self._updated.get(rank, frozenset())
        owners = [names for names in self._updated.values() if name in names]
        return name not in mine and bool(owners) and all(mine - names for names in owners)

    @cached_property
    def _updated(self) -> dict[int, frozenset[str]]:
        """Rank -> the parameters that its optimizers update in this step, or would have if it had not been skipped."""
        found: dict[int, frozenset[str]] = {}
        for rank, step in self.candidate.items():
            named = {str(n) for event in step.updates for group in event.data.get("params", []) for n in group}
            found[rank] = frozenset(named or {name for name, _ in step.digests.get(Site.SYNCED_GRADIENT, {})})
        return found

    def backward_order(self) -> list[str]:
        """Return the names of parameters in the order in which the control's backward reached them."""
        for event in self.control.events.get(Event.GRADIENT_ORDER, []):
            listed = [str(name) for name in event.data.get("order", [])]
            rest = [name for name, _ in self.control.digests.get(Site.SYNCED_GRADIENT, {}) if name not in listed]
            return listed + rest
        return [name for name, _ in reversed(self.control.digests.get(Site.SYNCED_GRADIENT, {}))]

    def finding(
        self,
        phase: Phase,
        name: str,
        site: Site | str,
        because: Cause,
        *,
        floor: Floor | None = None,
        ranks: list[int] | None = None,
        ranks_differ: bool = False,
        after: int | None = None,
        **evidence: Any,
    ) -> Finding:
        """Make a finding of the numerics layer at this step.

        ``after`` is how many of the step's updates come before it; by default that of the parameter of this name.
        """
        finding = Finding(
            layer="numerics",
            step=self.step,
            phase=phase,
            name=name,
            site=str(site),
            ranks=ranks,
            ranks_differ=ranks_differ,
            evidence={key: _rounded(value) for key, value in evidence.items()},
            floor=floor,
            cause=because,
            next=_causes.advice(because.code),
        )
        self.rounds[id(finding)] = self.control.update_of(name) if after is None else after
        return finding

    def in_order(self, findings: list[Finding]) -> list[Finding]:
        """Sort what was found by the update it leads to: a GAN's step has two, a closure goes on after the first."""
        return sorted(findings, key=lambda finding: self.rounds.get(id(finding), 0))


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(item) for item in value]
    return value
