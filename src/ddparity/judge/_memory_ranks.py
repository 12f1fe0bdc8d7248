"""Ranks that hold more than they should: more than the other ranks, or more than a single device for all samples."""

import statistics
from collections.abc import Callable

from ._memory_finding import finding
from ._memory_run import MemoryRank, size
from ._run import Run
from ._verdict import Finding, Floor

_MIN_EXTRA = 2 << 20
_MIN_SHARE = 0.25
"""A rank that holds this much more than the typical rank holds too much."""
_MAX_RATIO = 1.5
"""Of what the control needed; a wrapper may add the parameters once more, as buckets or gathered."""
_MAX_OUTLIER = 2.0
"""Of what a rank usually needs."""
_FREES, _KEEPS = 0.6, 0.1
"""Share of what forward kept that a healthy backward frees, and below which it frees nothing."""
_POINTS = ("forward", "before_backward", "backward", "before_optimizer", "optimizer", "end")
Allowed = Callable[[MemoryRank, MemoryRank, str, int], int]
_CATEGORIES = {
    "forward": "activations",
    "inside": "activations",
    "before_backward": "activations",
    "backward": "gradients",
    "before_optimizer": "gradients",
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
    typical = statistics.median_low(_of_training(each, common[-1]) for each in ranks.values())
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
            floor=Floor(value=float(int(floor)), source="a quarter of what training holds, half its parameters, 2 MiB"),
            extra=size(extra[rank]),
            extra_bytes=int(extra[rank]),
            times_its_parameters=round(extra[rank] / ranks[rank].parameters, 2) if ranks[rank].parameters else None,
            held={f"rank {r}": size(each.by_step[common[-1]].end) for r, each in list(ranks.items())[:16]},
        )
    ]


def _of_training(mine: MemoryRank, step: int) -> int:
    """Return what training itself holds at most: parameters, what the first steps added, what forward adds."""
    rises = [rise for point in _POINTS if (rise := _above(mine, step, point)) is not None]
    return mine.parameters + max(rises, default=0)


def beyond_control(control: Run, candidate: Run, alone: MemoryRank, ranks: dict[int, MemoryRank]) -> list[Finding]:
    """Return ranks that need more in a step than the control did, measured from what they held before the first one.

    A rank with more samples than the control had may need more all along, but not in a single step alone.
    """
    for step in sorted(alone.by_step):
        found = {}
        for rank, mine in ranks.items():
            if step == 0 or step not in mine.by_step or mine.by_step[step].source != alone.by_step[step].source:
                continue
            most = _num_samples(control, min(control.ranks), step)
            allowed = _as_control if _num_samples(candidate, rank, step) <= most else _as_usual
            worst = _worst(alone, mine, step, allowed)
            if worst is not None:
                found[rank] = worst
        if found:
            rank = max(found, key=lambda each: found[each][1])
            point, more, floor = found[rank]
            return [
                finding(
                    "memory.more_than_control",
                    category=_CATEGORIES.get(point, "held"),
                    step=step,
                    ranks=sorted(found),
                    ranks_differ=len(found) < len(ranks),
                    floor=Floor(value=float(floor), source="the control's by half more, parameters, 2 MiB; bytes"),
                    at=point.replace("_", " "),
                    held=size(_above(ranks[rank], step, point) or 0),
                    control=size(_above(alone, step, point) or 0),
                    usual=size(_usual(ranks[rank], point)),
                    more=size(more),
                    largest_in=ranks[rank].by_step[step].largest[0],
                )
            ]
    return []


def evaluation_beyond_control(alone: MemoryRank, ranks: dict[int, MemoryRank]) -> list[Finding]:
    """Return the first evaluation that adds much more to what training holds than the control's at the same step."""
    theirs = {each.step: each.rise for each in alone.evaluations}
    for step in sorted(theirs):
        found = {}
        for rank, mine in ranks.items():
            limit = int(_MAX_RATIO * theirs[step]) + max(mine.parameters, alone.parameters) + _MIN_EXTRA
            rise = max((each.rise for each in mine.evaluations if each.step == step), default=0)
            if rise > limit and _same_source(alone, mine):
                found[rank] = rise, limit
        if found:
            rank = max(found, key=lambda each: found[each])
            rise, limit = found[rank]
            return [
                finding(
                    "memory.evaluation_beyond_control",
                    category="evaluation",
                    step=step,
                    ranks=sorted(found),
                    ranks_differ=len(found) < len(ranks),
                    floor=Floor(value=float(limit), source="the control's by half more, parameters, 2 MiB; bytes"),
                    held=size(rise),
                    control=size(theirs[step]),
                    more=size(rise - theirs[step]),
                )
            ]
    return []


def _same_source(alone: MemoryRank, mine: MemoryRank) -> bool:
    return bool(alone.steps and mine.steps) and alone.steps[-1].source == mine.steps[-1].source


def retained(alone: MemoryRank, ranks: dict[int, MemoryRank]) -> list[Finding]:
    """Return ranks on which backward frees nothing of what forward had kept, although it does in the control."""
    found: dict[int, int] = {}
    for rank, mine in ranks.items():
        steps = [step for step in sorted(set(mine.by_step) & set(alone.by_step)) if step > 0]
        kept = [step for step in steps if _frees(alone, step) > _FREES and _frees(mine, step) < _KEEPS]
        if len(kept) >= _MIN_STEPS and len(kept) > len(steps) / 2:
            found[rank] = kept[0]
    if not found:
        return []
    rank = min(found, key=lambda each: found[each])
    step = found[rank]
    theirs, held = alone.by_step[step], ranks[rank].by_step[step]
    return [
        finding(
            "memory.graph_retained",
            category="activations",
            step=step,
            ranks=found,
            ranks_differ=len(found) < len(ranks),
            floor=Floor(value=_KEEPS, source="share of what forward kept that backward has to free"),
            forward_kept=size(held.points["forward"] - held.points["before_forward"]),
            freed_by_backward=size(held.points["before_backward"] - held.points["backward"]),
            freed_in_control=size(theirs.points["before_backward"] - theirs.points["backward"]),
        )
    ]


def _frees(mine: MemoryRank, step: int) -> float:
    """Return which share of what forward kept backward freed; one half where too little was kept to tell."""
    points = mine.by_step[step].points
    if not {"before_forward", "forward", "before_backward", "backward"} <= points.keys():
        return 0.5
    kept = points["forward"] - points["before_forward"]
    if kept < _MIN_EXTRA or mine.by_step[step].source == "rss":
        return 0.5
    return (points["before_backward"] - points["backward"]) / kept


def _worst(alone: MemoryRank, mine: MemoryRank, step: int, allowed: Allowed) -> tuple[str, int, int] | None:
    """Return the point at which a rank is the furthest above what is allowed, by how much more than the control."""
    found: tuple[str, int, int] | None = None
    for point in _POINTS:
        held, theirs = _above(mine, step, point), _above(alone, step, point)
        if held is None or theirs is None:
            continue
        limit = allowed(alone, mine, point, theirs)
        if held > limit and (found is None or held - limit > found[1] - found[2]):
            found = point, held - theirs, limit
    return found


def _as_control(alone: MemoryRank, mine: MemoryRank, point: str, theirs: int) -> int:
    return int(_MAX_RATIO * max(theirs, 0)) + max(mine.parameters, alone.parameters) + _MIN_EXTRA


def _as_usual(alone: MemoryRank, mine: MemoryRank, point: str, theirs: int) -> int:
    """Return twice what is usual on this rank, or as much more as is unusual for the control."""
    unusual = max(1.0, theirs / max(_usual(alone, point), 1.0))
    return int(_MAX_OUTLIER * unusual * max(_usual(mine, point), 0)) + mine.parameters + _MIN_EXTRA


def _above(mine: MemoryRank, step: int, point: str) -> int | None:
    """Return how much more was held at a point of a step than before the first step."""
    points = mine.by_step[step].points
    first = mine.steps[0].points.get("start")
    return points[point] - first if point in points and first is not None else None


def _usual(mine: MemoryRank, point: str) -> float:
    found = [held for each in mine.steps if (held := _above(mine, each.step, point)) is not None]
    return statistics.median(found) if found else 0.0


def _num_samples(run: Run, rank: int, step: int) -> int:
    found = run.ranks.get(rank, {}).get(step)
    return sum(len(row.ids) for row in found.samples if row.training) if found is not None else 0
