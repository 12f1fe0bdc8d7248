"""Ranks that hold more than they should: more than the other ranks, or more than a single device for all samples."""

import statistics

from ._memory_finding import finding
from ._memory_run import MemoryRank, MemoryStep, size
from ._run import Run
from ._verdict import Finding, Floor

_MIN_EXTRA = 1 << 20
_MIN_SHARE = 0.25
"""A rank that holds this much more than the typical rank holds too much."""
_MAX_RATIO = 1.5
_SLACK = 2
"""Times the parameters that a wrapper may add: buckets, and what it gathers."""
_CATEGORIES = {
    "forward": "activations",
    "inside": "activations",
    "backward": "gradients",
    "optimizer": "optimizer_state",
}
_MIN_STEPS = 3


def imbalance(ranks: dict[int, MemoryRank]) -> list[Finding]:
    """Return the rank that holds more than the others in every step although it trains the same parameters."""
    if len(ranks) < 2 or any(not each.steps for each in ranks.values()):
        return []
    if len({each.parameters for each in ranks.values()}) > 1 or len({e.steps[-1].source for e in ranks.values()}) > 1:
        return []  # stages, or uneven shards: nobody says that they should hold the same
    common = sorted(set.intersection(*({s.step for s in each.steps} for each in ranks.values())))
    if len(common) < _MIN_STEPS:
        return []
    extras: dict[int, list[float]] = {rank: [] for rank in ranks}
    for step in common:
        ends = {rank: each.by_step[step].end for rank, each in ranks.items()}
        low = min(ends.values()) if len(ends) == 2 else statistics.median_low(ends.values())
        for rank, end in ends.items():
            extras[rank].append(end - low)
    extra = {rank: statistics.median(each) for rank, each in extras.items()}
    rank = max(extra, key=lambda each: extra[each])
    typical = statistics.median_low(each.by_step[common[-1]].end for each in ranks.values())
    floor = max(_MIN_EXTRA, _MIN_SHARE * typical, 0.5 * ranks[rank].parameters)
    if extra[rank] < floor:
        return []
    since = next(step for step, more in zip(common, extras[rank], strict=True) if more > floor / 2)
    return [
        finding(
            "memory.rank_holds_more",
            category="held",
            step=since,
            ranks=[rank],
            ranks_differ=True,
            floor=Floor(value=float(int(floor)), source="a quarter of what a rank holds, half its parameters, 1 MiB"),
            extra=size(extra[rank]),
            extra_bytes=int(extra[rank]),
            times_its_parameters=round(extra[rank] / ranks[rank].parameters, 2) if ranks[rank].parameters else None,
            held={f"rank {r}": size(each.by_step[common[-1]].end) for r, each in list(ranks.items())[:16]},
        )
    ]


def beyond_control(control: Run, candidate: Run, alone: MemoryRank, ranks: dict[int, MemoryRank]) -> list[Finding]:
    """Return ranks whose step needs more than the control's did, although they hold no more samples of it."""
    for step in sorted(alone.by_step):
        found = {}
        for rank, mine in ranks.items():
            theirs = mine.by_step.get(step)
            if theirs is None or theirs.source != alone.by_step[step].source:
                continue
            if _num_samples(candidate, rank, step) > _num_samples(control, min(control.ranks), step) or step == 0:
                continue
            worst = _worst(alone.by_step[step], theirs, _SLACK * max(mine.parameters, alone.parameters))
            if worst is not None:
                found[rank] = worst
        if found:
            rank = max(found, key=lambda each: found[each][1])
            point, more, floor = found[rank]
            theirs, held = ranks[rank].by_step[step], alone.by_step[step]
            return [
                finding(
                    "memory.more_than_control",
                    category=_CATEGORIES.get(point, "held"),
                    step=step,
                    ranks=sorted(found),
                    ranks_differ=len(found) < len(ranks),
                    floor=Floor(value=float(floor), source="the control's step by half more, twice the parameters"),
                    at=point.replace("_", " "),
                    more=size(more),
                    rise=size(theirs.rise(point) or 0),
                    control_rise=size(held.rise(point) or 0),
                    largest_in=theirs.largest[0],
                    usual=size(_usual(ranks[rank], step, point)),
                )
            ]
    return []


def _worst(control: MemoryStep, mine: MemoryStep, slack: int) -> tuple[str, int, int] | None:
    """Return the point at which a rank is the furthest above the control, by how much, and what was allowed."""
    found = None
    for point in ("forward", "before_backward", "backward", "before_optimizer", "optimizer", "end"):
        rise, theirs = mine.rise(point), control.rise(point)
        if rise is None or theirs is None:
            continue
        allowed = int(_MAX_RATIO * max(theirs, 0)) + slack + _MIN_EXTRA
        if rise > allowed and (found is None or rise - allowed > found[1] - found[2]):
            found = point, rise - theirs, allowed
    return found


def _usual(mine: MemoryRank, step: int, point: str) -> float:
    others = [rise for each in mine.steps if each.step != step and (rise := each.rise(point)) is not None]
    return statistics.median(others) if others else 0.0


def _num_samples(run: Run, rank: int, step: int) -> int:
    found = run.ranks.get(rank, {}).get(step)
    return sum(len(row.ids) for row in found.samples if row.training) if found is not None else 0
