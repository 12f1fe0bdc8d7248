"""Memory that rises step after step, or call after call of an evaluation: since when, by how much, what holds it."""

import statistics
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from ddparity.trace import EventRow

from ._memory_finding import finding
from ._memory_run import Evaluation, MemoryRank, count, size
from ._verdict import Finding, Floor

_SETTLED = 1
"""Increments up to this step are those of starting up: gradients, optimizer state, buckets."""
_MIN_STEPS = 5
_MIN_RISE = {"malloc": 48 << 10, "cuda": 48 << 10, "rss": 1 << 20}
_LOUD = {"malloc": 256 << 10, "cuda": 256 << 10, "rss": 2 << 20}
_LONG = 20
_IRREGULAR = 0.75
"""A rise below that, in fewer steps than that, which differs by more than this share of it from step to step and which
no variable holds, is that of libraries that are starting up: what a training keeps is of one size a step."""
_SHARE = 0.8
"""This share of the steps has to rise for memory to be called growing."""
_MIN_CALLS = 4
_FLOOR = "smallest rise a step that is called growth"


@dataclass(frozen=True)
class Trend:
    """A rise that goes on."""

    since: int
    rise: int
    """Bytes a step, the median."""
    num_steps: int
    spread: int = 0
    """By how much the rises of single steps differ, in bytes."""


def growth(ranks: dict[int, MemoryRank]) -> list[Finding]:
    """Return the growth of the rank where it begins first, with all ranks on which it is seen."""
    trends = {rank: trend for rank, each in ranks.items() if (trend := trend_of(each)) is not None}
    if not trends:
        return []
    first = min(trends, key=lambda rank: (trends[rank].since, -trends[rank].rise))
    mine, trend = ranks[first], trends[first]
    holders = [event for rank in trends for event in ranks[rank].holders] or []
    holder = _best(mine.holders or holders, trend)
    if holder is None and all(_is_starting_up(each, ranks[rank]) for rank, each in trends.items()):
        return []
    code, category, detail = _told(holder)
    last = mine.steps[-1]
    left = mine.capacity - max(last.rss, last.end) if mine.capacity else 0
    return [
        finding(
            code,
            category=category,
            step=trend.since,
            ranks=trends,
            ranks_differ=len(trends) < len(ranks),
            confidence="proved" if holder is not None else "unexplained",
            detail=detail,
            floor=Floor(value=float(_MIN_RISE.get(last.source, 1 << 20)), source=f"{_FLOOR}, bytes"),
            rise_a_step=size(trend.rise),
            bytes_a_step=trend.rise,
            steps_seen=trend.num_steps,
            held_at_the_end=size(last.end),
            counted_by=last.source,
            **_evidence(holder),
            runs_out_at_step=last.step + left // trend.rise if left > 0 else None,
            capacity=f"{size(mine.capacity)} ({mine.capacity_by})" if mine.capacity else "",
        )
    ]


def trend_of(mine: MemoryRank) -> Trend | None:
    """Return how the memory held at the ends of steps rises, or None where it does not go on rising."""
    if len(mine.steps) < _MIN_STEPS:
        return None
    least = _MIN_RISE.get(mine.steps[-1].source, 1 << 20)
    rises = [(later.step, later.end - earlier.end) for earlier, later in pairwise(mine.steps)]
    tail = [rise for step, rise in rises if step > _SETTLED]
    recent = tail[-max(_MIN_STEPS - 2, len(tail) // 2) :]
    if len(recent) < _MIN_STEPS - 2:
        return None
    typical = statistics.median(recent)
    if typical < least or not _goes_on(recent, typical):
        return _in_jumps(mine, tail, least)
    since, num, small = rises[-1][0], 0, 0
    for step, rise in reversed(rises):
        small = 0 if rise > typical / 3 else small + 1
        if small > 1:
            break
        if not small:
            since, num = step, num + 1
    seen = [rise for step, rise in rises if step >= max(since, _SETTLED + 1)]
    spread = max(seen) - min(seen)
    # What the first rise adds to has survived too, and the first step is where everything else begins as well.
    return Trend(since=max(0, since - 1), rise=int(typical), num_steps=num, spread=spread)


def _is_starting_up(trend: Trend, mine: MemoryRank) -> bool:
    loud = _LOUD.get(mine.steps[-1].source, 2 << 20)
    return trend.num_steps < _LONG and trend.rise < loud and trend.spread > _IRREGULAR * trend.rise


def unsettled(ranks: dict[int, MemoryRank]) -> int:
    """Return how much memory rises a step, in bytes, where that is taken for libraries that are starting up; else 0."""
    trends = {rank: trend for rank, each in ranks.items() if (trend := trend_of(each)) is not None}
    return max((trend.rise for trend in trends.values()), default=0)


def _goes_on(rises: list[int], typical: float) -> bool:
    rising = sum(rise > typical / 3 for rise in rises)
    return rising >= _SHARE * len(rises) and sum(rises) > 0.6 * typical * len(rises)


def _in_jumps(mine: MemoryRank, tail: list[int], least: int) -> Trend | None:
    """Return a rise that comes every few steps: the least that is held in each third of the run keeps rising."""
    if len(tail) < 12:
        return None
    ends = [step.end for step in mine.steps if step.step > _SETTLED]
    third = len(ends) // 3
    lows = [min(ends[i * third : (i + 1) * third]) for i in range(3)]
    highs = [max(ends[i * third : (i + 1) * third]) for i in range(3)]
    per_step = (lows[2] - lows[0]) / (2 * third)
    even = lows[1] - lows[0], lows[2] - lows[1]
    if per_step < least / 4 or min(even) < max(even) / 3 or lows[2] < highs[0]:
        return None
    return Trend(since=_SETTLED, rise=int(per_step), num_steps=len(tail))


def _best(holders: list[EventRow], trend: Trend) -> EventRow | None:
    """Return the variable that holds more and more: what grows by bytes as the process does, else by graph."""
    fitting = [each for each in holders if count(each.data.get("bytes")) > trend.rise / 4]
    graphs = [each for each in holders if count(each.data.get("nodes")) > 0]
    if fitting:
        return max(fitting, key=lambda each: count(each.data.get("bytes")))
    if graphs:
        return max(graphs, key=lambda each: count(each.data.get("nodes")))
    return max(holders, key=lambda each: count(each.data.get("tensors")), default=None)


def _told(holder: EventRow | None) -> tuple[str, str, str]:
    """Return cause, category and where the thing that grows stands."""
    if holder is None:
        return "memory.growth", "held", ""
    at = _at(holder)
    nodes, tensors = count(holder.data.get("nodes")), count(holder.data.get("tensors"))
    where = f"{holder.name!r}{f' ({at})' if at else ''}"
    if nodes > 0 and tensors < 1:
        return "memory.graph_kept", "activations", f"It is held by {where}."
    if nodes > 0:
        return "memory.outputs_kept", "activations", f"They are held by {where}."
    if tensors > 0:
        return "memory.tensors_kept", "held", f"They are held by {where}."
    return "memory.growth", "held", f"What grows is {where}."


def _evidence(holder: EventRow | None) -> dict[str, Any]:
    if holder is None:
        return {}
    nodes, tensors = count(holder.data.get("nodes")), count(holder.data.get("tensors"))
    return {
        "held_by": holder.name,
        "variable_of": str(holder.data.get("function", "")),
        "put_there": _at(holder),
        "graph_nodes_a_step": nodes or None,
        "tensors_a_step": tensors or None,
    }


def _at(holder: EventRow) -> str:
    lines = holder.data.get("lines")
    return ", ".join(str(line) for line in lines[:3]) if isinstance(lines, list) else ""


def evaluation_growth(ranks: dict[int, MemoryRank]) -> list[Finding]:
    """Return evaluations in which each call leaves more behind, with the graph that it was computed with."""
    found: list[Finding] = []
    for rank, mine in ranks.items():
        for each in mine.evaluations:
            kept = _kept_a_call(each)
            if kept is not None:
                found.append(
                    finding(
                        "memory.evaluation_keeps_graphs",
                        category="evaluation",
                        step=each.step,
                        ranks=[rank],
                        kept_a_call=size(kept),
                        outputs_a_call=size(statistics.median(each.outputs)),
                        calls=len(each.held),
                        calls_with_gradients=each.graphs,
                    )
                )
                break
    if len(found) > 1:
        first = min(found, key=lambda each: each.step or 0)
        first.ranks = sorted(rank for each in found for rank in each.ranks or [])
        return [first]
    return found


def _kept_a_call(each: Evaluation) -> float | None:
    """Return how much each call of an evaluation keeps, if that is more than its output and holds graphs."""
    if len(each.held) < _MIN_CALLS or not each.graphs or not each.outputs:
        return None
    rises = [later - earlier for earlier, later in pairwise(each.held[1:])]
    typical = statistics.median(rises)
    output = statistics.median(each.outputs)
    return typical if typical > max(1.5 * output, _MIN_RISE["malloc"]) and _goes_on(rises, typical) else None
