"""The merge plan: how the ranks' numbers merge to what a single device would hold. Inferred, checked, then used.

Samples: ranks with equal multisets of identities hold copies (Replicate), disjoint ones hold parts (Shard), and the
parts together must be exactly the control's. Weight: the factor with which the ranks' local gradients add up to the
synchronised one, 1/N for an average, 1 for a sum; losses and activation gradients merge with the same weight.
"""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ddparity.digest import Digest, merge_sum, merge_weighted, relate
from ddparity.trace import Event, Site

from ._run import RankStep, Run

Pieces = Counter[tuple[int, int, int, int]]
"""How often (identity, start, stop, total) is held; zeros for a whole sample, else a slice along the sequence."""
WHOLE = (0, 0, 0)

WRAPPERS = ("DistributedDataParallel", "FullyShardedDataParallel")
"""Classes of the wrappers that reduce gradients."""

NICE = 1e-3
"""How near a factor must be to a nice number to be called by its name."""


@dataclass
class SamplePlan:
    """Who holds which samples of one step.

    Attributes:
        placement: ``Replicate``, ``Shard``, ``Shard x Replicate``, ``Same``, or ``Unproved``.
        groups: Ranks that hold copies of each other; one entry for each part.
        foreign: Ranks whose inputs are none of the control's samples while the others cover them all.
        reason: Why the plan is not proved, in words; empty if it is.
        evidence: Numbers for a data finding.
    """

    placement: str
    groups: list[list[int]]
    foreign: list[int] = field(default_factory=list)
    reason: str = ""
    evidence: dict[str, Any] = field(default_factory=dict)

    @property
    def proved(self) -> bool:
        """Whether the ranks together hold exactly the control's samples."""
        return self.placement != "Unproved"

    @property
    def leaders(self) -> list[int]:
        """One rank of each part."""
        return [group[0] for group in self.groups]


def multiset(step: RankStep) -> Pieces:
    """Return how often each sample, or each slice of one, entered a model of this rank in training."""
    return pieces_of(step, set(step.batches))


def pieces_of(step: RankStep, batches: set[int]) -> Pieces:
    """Return how often each sample, or each slice of one, is in some batches of a rank."""
    found: Pieces = Counter()
    for number in batches & set(step.batches):
        ids, counts = np.unique(step.batches[number], return_counts=True)
        start, stop, total = step.pieces.get(number, WHOLE)
        for sample, count in zip(ids.tolist(), counts.tolist(), strict=True):
            found[sample, start, stop, total] += count
    return found


def joined(parts: Iterable[Pieces]) -> Pieces:
    """Add up what several ranks hold; slices that make up a whole sample become that sample."""
    total: Pieces = sum(parts, Counter())
    slices: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
    for (sample, start, stop, length), count in total.items():
        if length:
            slices.setdefault((sample, length), []).append((start, stop, count))
    for (sample, length), found in slices.items():
        count = _tiled(sorted(found), length)
        if count:
            for start, stop, _ in found:
                del total[sample, start, stop, length]
            total[(sample, *WHOLE)] += count
    return total


def _tiled(slices: list[tuple[int, int, int]], length: int) -> int:
    """Return how often sorted slices, each with its count, make up ``0:length``; 0 if they do not."""
    end = 0
    for start, stop, _ in slices:
        if start != end:
            return 0
        end = stop
    counts = {count for _, _, count in slices}
    return counts.pop() if end == length and len(counts) == 1 else 0


def plan_samples(control: RankStep, candidate: dict[int, RankStep]) -> SamplePlan:
    """Find out how the candidate's ranks share the control's samples in one step."""
    wanted = multiset(control)
    held = {rank: multiset(step) for rank, step in sorted(candidate.items())}
    if not wanted and not any(held.values()):
        return SamplePlan("Unproved", [[r] for r in held], reason="no sample entered a model as a tensor")
    if len(held) > 1 and joined(held.values()) == wanted:  # also where samples are alike, so that shards are equal
        groups = [[rank] for rank in held]
    else:
        groups = _equal_groups(held)
    parts = [held[group[0]] for group in groups]
    if joined(parts) == wanted:
        sliced = any(total for part in parts for (*_, total) in part)
        return SamplePlan("Shard(sequence)" if sliced else _placement(groups, len(held)), groups)
    own = [group for group in groups if held[group[0]] & wanted]
    foreign = sorted(rank for group in groups if group not in own for rank in group)
    if foreign and own and joined(held[group[0]] for group in own) == wanted:
        return SamplePlan(_placement(own, len(held)), own, foreign)
    return SamplePlan("Unproved", groups, reason=_why(wanted, held), evidence=_evidence(wanted, held))


def _equal_groups(held: dict[int, Pieces]) -> list[list[int]]:
    groups: list[list[int]] = []
    for rank, counter in held.items():
        for group in groups:
            if held[group[0]] == counter:
                group.append(rank)
                break
        else:
            groups.append([rank])
    return groups


def _placement(groups: list[list[int]], num_ranks: int) -> str:
    if num_ranks == 1:
        return "Same"
    if len(groups) == 1:
        return "Replicate"
    return "Shard" if all(len(group) == 1 for group in groups) else "Shard x Replicate"


def _evidence(wanted: Pieces, held: dict[int, Pieces]) -> dict[str, Any]:
    union = joined(held.values())
    on_several = sum(1 for sample in union if sum(sample in counter for counter in held.values()) > 1)
    return {
        "control_samples": wanted.total(),
        "candidate_samples": union.total(),
        "in_common": (wanted & union).total(),
        "missing": (wanted - union).total(),
        "not_in_control": (union - wanted).total(),
        "on_several_ranks": on_several,
        "in_common_by_rank": {str(rank): (wanted & counter).total() for rank, counter in held.items()},
    }


def _why(wanted: Pieces, held: dict[int, Pieces]) -> str:
    numbers = _evidence(wanted, held)
    if numbers["in_common"] == 0:
        return "no sample of the control's is among the candidate's"
    return (
        f"{numbers['missing']} of the control's {numbers['control_samples']} samples are missing, "
        f"{numbers['not_in_control']} are not the control's, {numbers['on_several_ranks']} are on several ranks"
    )


@dataclass
class ReductionPlan:
    """With which weight local gradients add up.

    Attributes:
        weight: The factor; 1/N if nothing else could be proved.
        observed: ``mean``, ``sum``, ``own`` (nothing reduced), ``after the step`` (the parameters), a number, or
            ``unproved``.
        by_name: Observed factor of each parameter for which the relation held.
        wrapper: Class of the data-parallel wrapper, if any.
        proved: Whether most parameters hold the relation.
    """

    weight: float
    observed: str
    by_name: dict[str, float]
    wrapper: str
    proved: bool


def local_gradient(step: RankStep, name: str) -> Digest | None:
    """Return a rank's local gradient of a parameter: the sum over the step's backward passes before its update.

    What another loss of the step adds after that, as a generator's does to its critic, the update does not see.
    """
    used = step.rows(Site.SYNCED_GRADIENT, name)
    last = used[0].seq if used else math.inf
    every = [row for row in step.rows(Site.LOCAL_GRADIENT, name) if row.seq <= last]
    rows = [r for r in every if not step.passes or r.backward in step.pass_numbers]
    return merge_sum([row.digest for row in rows]) if rows else None


def is_placed(step: RankStep, name: str) -> bool:
    """Whether a parameter's local gradients are DTensors: parts or addends, with weights of their own."""
    return any(row.site.placement for row in step.rows(Site.LOCAL_GRADIENT, name))


def synced_gradient(step: RankStep, name: str) -> Digest | None:
    """Return a rank's gradient of a parameter after synchronisation, before clipping and unscaling."""
    rows = step.rows(Site.SYNCED_GRADIENT, name)
    return rows[0].digest if rows else None


def wrapper_of(run: Run) -> str:
    """Return the class of the wrapper that reduces gradients, or an empty string."""
    for event in run.events(Event.WRAP):
        if event.name in WRAPPERS:
            return event.name
    return ""


def plan_reduction(ranks: dict[int, RankStep], wrapper: str, floor: float) -> ReductionPlan:
    """Find the weight with which the ranks' local gradients of one step add up to the synchronised ones."""
    num = len(ranks)
    if num <= 1:
        return ReductionPlan(1.0, "alone", {}, wrapper, proved=True)
    steps = list(ranks.values())
    names = [name for name, _ in steps[0].digests.get(Site.SYNCED_GRADIENT, {})]
    by_name: dict[str, float] = {}
    own = 0
    for name in names:
        local = [local_gradient(step, name) for step in steps]
        synced = [synced_gradient(step, name) for step in steps]
        if any(d is None for d in (*local, *synced)) or is_placed(steps[0], name):
            continue
        factor = _relation(synced, local, floor)
        if factor is not None:
            by_name[name] = factor
        elif all(relate(s, d).residual < floor for s, d in zip(synced, local, strict=True) if s and d):
            own += 1
    if not by_name:
        return ReductionPlan(1.0 / num, "own" if own else "unproved", {}, wrapper, proved=False)
    value, votes = _majority(list(by_name.values()))
    return ReductionPlan(value, _factor_name(value, num), by_name, wrapper, proved=votes * 2 > len(names))


def _relation(synced: list[Digest | None], local: list[Digest | None], floor: float) -> float | None:
    """Return c with ``synced = c * sum of local`` on every rank, or None."""
    total = merge_weighted([d for d in local if d is not None], [1.0] * len(local))
    if total.norm == 0.0:
        return None
    factors = []
    for digest in synced:
        assert digest is not None
        relation = relate(digest, total)
        if not relation.residual < floor:
            return None
        factors.append(relation.factor)
    return factors[0] if max(factors) - min(factors) <= floor * abs(factors[0]) else None


def _majority(values: list[float]) -> tuple[float, int]:
    best = max(values, key=lambda v: sum(abs(v - other) <= NICE * abs(v) for other in values))
    near = [other for other in values if abs(best - other) <= NICE * abs(best)]
    return float(np.median(near)), len(near)


def _factor_name(value: float, num: int) -> str:
    if abs(value * num - 1.0) < NICE:
        return "mean"
    if abs(value - 1.0) < NICE:
        return "sum"
    return f"{value:.6g}"
