"""What a picture of memory is made of: a line a rank along the steps, and how much there is."""

from collections.abc import Sequence

import msgspec

from ._bounded import some_points, some_ranks
from ._memory_run import MemoryRank, MemoryStep, load_memory
from ._run import Run
from ._verdict import Finding
from .memory import STABLE, TIGHT

_MAX_POINTS = 8000
_MAX_OF_A_LINE = 240


class MemoryLine(msgspec.Struct, kw_only=True):
    """One process along its steps.

    Attributes:
        rank: Its rank; None for the control.
        steps: Training steps, ascending.
        held: Bytes, the most that was held at a border of a phase of each step, or in an evaluation before it.
        used: Bytes of each step that count against the capacity.
        num_steps: How many steps there were before some were left out.
        ended_in: The step in which it ended without coming to that step's end; the last point is of that step.
        top: The most that was held, bytes.
        top_used: The most that counted against the capacity, bytes.
    """

    rank: int | None
    steps: list[int]
    held: list[int]
    used: list[int]
    num_steps: int
    ended_in: int | None = None
    top: int = 0
    top_used: int = 0


class MemoryMark(msgspec.Struct, kw_only=True):
    """The first deviation of the memory layer.

    Attributes:
        step: The training step; None where it belongs to none.
        ranks: On which ranks.
        name: As in the finding, ``memory:CATEGORY``.
        code: The cause.
    """

    step: int | None
    ranks: list[int]
    name: str
    code: str


class MemoryPicture(msgspec.Struct, kw_only=True):
    """Memory along the steps of all ranks.

    Attributes:
        counted_by: What ``held`` counts: ``cuda``, ``malloc`` or ``rss``.
        used_is: What ``used`` counts: ``reserved`` or ``rss``.
        capacity: Bytes there are for a process; 0 where that is not known.
        capacity_by: Who says so: the device, a cgroup, a limit or the machine.
        stable: Bytes up to which a peak is called stable.
        tight: Bytes up to which it is called tight; beyond them it is prone to run out.
        lines: The control's line, if there is one, then those of the ranks.
        num_ranks: How many ranks there were before some were left out.
        first: The first deviation.
    """

    counted_by: str
    used_is: str
    capacity: int
    capacity_by: str
    stable: int
    tight: int
    lines: list[MemoryLine]
    num_ranks: int
    first: MemoryMark | None = None


def picture_memory(candidate: Run, control: Run | None, findings: Sequence[Finding]) -> MemoryPicture | None:
    """Return the memory of a candidate's ranks along the steps; None where none was recorded."""
    alone = None if control is None else next(iter(load_memory(control).values()), None)
    return picture_ranks(load_memory(candidate), alone, findings)


def picture_ranks(
    held: dict[int, MemoryRank], alone: MemoryRank | None, findings: Sequence[Finding]
) -> MemoryPicture | None:
    """Return the memory of ranks along the steps, and of the single device beside it."""
    ranks = {rank: mine for rank, mine in held.items() if mine.steps or mine.unfinished}
    if not ranks:
        return None
    first = _mark(findings)
    wanted = () if first is None else first.ranks
    chosen = some_ranks(ranks, wanted)
    room = min(_MAX_OF_A_LINE, max(2, _MAX_POINTS // (len(chosen) + 1)))
    keep = None if first is None else first.step
    lines = [_line(rank, ranks[rank], room, keep) for rank in chosen]
    if alone is not None and alone.steps:
        lines.insert(0, _line(None, alone, room, keep))
    known = [mine for mine in ranks.values() if mine.capacity > 0]
    least = min(known, key=lambda mine: mine.capacity, default=None)
    capacity = 0 if least is None else least.capacity
    source = _source(next(iter(ranks.values())))
    return MemoryPicture(
        counted_by=source,
        used_is="reserved" if source == "cuda" else "rss",
        capacity=capacity,
        capacity_by="" if least is None else least.capacity_by,
        stable=int(capacity * STABLE),
        tight=int(capacity * TIGHT),
        lines=lines,
        num_ranks=len(ranks),
        first=first,
    )


def _mark(findings: Sequence[Finding]) -> MemoryMark | None:
    found = [each for each in findings if each.layer == "memory"]
    first = next((each for each in found if each.follows is None), found[0] if found else None)
    if first is None:
        return None
    return MemoryMark(step=first.step, ranks=list(first.ranks or []), name=first.name, code=first.cause.code)


def _source(mine: MemoryRank) -> str:
    last = mine.steps[-1] if mine.steps else mine.unfinished
    return "" if last is None else last.source


def _line(rank: int | None, mine: MemoryRank, room: int, keep: int | None) -> MemoryLine:
    held, used = _values(mine)
    steps = sorted(held)
    chosen = [steps[i] for i in some_points([held[step] for step in steps], room, _place(steps, keep))]
    return MemoryLine(
        rank=rank,
        steps=chosen,
        held=[held[step] for step in chosen],
        used=[used[step] for step in chosen],
        num_steps=len(steps),
        ended_in=None if mine.unfinished is None else mine.unfinished.step,
        top=max(held.values(), default=0),
        top_used=max(used.values(), default=0),
    )


def _place(steps: list[int], keep: int | None) -> list[int]:
    return [steps.index(keep)] if keep in steps else []


def _values(mine: MemoryRank) -> tuple[dict[int, int], dict[int, int]]:
    """Return what was held and what was used, by step."""
    held: dict[int, int] = {}
    used: dict[int, int] = {}
    for step in [*mine.steps, *([] if mine.unfinished is None else [mine.unfinished])]:
        held[step.step] = max(held.get(step.step, 0), _at_borders(step))
        against = step.reserved if step.source == "cuda" else step.rss
        used[step.step] = max(used.get(step.step, 0), against, held[step.step])
    for each in mine.evaluations:
        if each.step in held:
            held[each.step] = max(held[each.step], each.most)
            used[each.step] = max(used[each.step], each.most)
    return held, used


def _at_borders(step: MemoryStep) -> int:
    """Return the most at a border of a phase: what is read inside a forward is there for recorded steps alone."""
    return max((held for point, held in step.points.items() if point != "inside"), default=0)
