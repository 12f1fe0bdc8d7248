"""Memory along the steps: what each rank holds, and how much of the capacity that is."""

from collections.abc import Callable, Sequence
from itertools import pairwise

from ddparity.judge import MemoryLine, MemoryMark, MemoryPicture
from ddparity.judge._comm_finding import listed
from ddparity.judge._memory_run import size
from ddparity.judge.memory import band
from ddparity.report._wording import plural
from ddparity.report.figures._frame import (
    LEFT,
    RIGHT,
    TEXT,
    WIDTH,
    box,
    curve,
    figure,
    first_told,
    label,
    line,
    scaled,
    svg,
    table,
    text,
    ticks,
)

_TOP, _HEIGHT, _LOW, _BOTTOM = 26, 200, 180, 40
_FEW = 4
"""So many lines have a pattern of their own; more of them are alike."""
_MAX_COLUMNS = 8
_COUNTED = {
    "cuda": "allocated on the device",
    "malloc": "allocated, as the C library counts",
    "rss": "resident pages of the process",
}
_USED = {"reserved": "reserved on the device", "rss": "resident pages of the process"}
_RAN_OUT = frozenset({"memory.out_of_memory", "memory.killed"})
_BANDS = ("STABLE", "TIGHT", "OOM-PRONE")


def memory_figure(picture: MemoryPicture | None) -> str:
    """Return the curve of memory, and where the capacity is known, a second one against its bands."""
    if picture is None or not any(each.steps for each in picture.lines):
        return ""
    drawings = [_held(picture)]
    if picture.capacity > 0:
        drawings.append(_used(picture))
    return figure(_caption(picture), drawings, _numbers(picture))


def _caption(picture: MemoryPicture) -> str:
    counted = _COUNTED.get(picture.counted_by, picture.counted_by)
    parts = [f"<b>Memory along the steps</b>, the most held at a border of a phase ({text(counted)})"]
    if picture.capacity > 0:
        used = _most_used(picture)
        share = used / picture.capacity
        ran_out = picture.first is not None and picture.first.code in _RAN_OUT
        word = "" if ran_out else f", {band(share)}"
        there = f"{text(size(picture.capacity))} ({text(picture.capacity_by)})"
        parts.append(f"most used {text(size(used))} of {there}: {share:.1%}{word}")
        if ran_out:
            parts.append("what it asked for when it ran out is not in the curve")
    left = picture.num_ranks - sum(each.rank is not None for each in picture.lines)
    if left > 0:
        parts.append(f"{plural(left, 'more rank')} left out")
    return "; ".join(parts) + _first(picture.first)


def _first(first: MemoryMark | None) -> str:
    if first is None:
        return ""
    at = "" if first.step is None else f"step {first.step}, "
    who = f" on rank{'' if len(first.ranks) == 1 else 's'} {listed(first.ranks)}" if first.ranks else ""
    return first_told(f"{at}{first.name}", first.code, who)


def _most_used(picture: MemoryPicture) -> int:
    return max((each.top_used for each in picture.lines if each.rank is not None), default=0)


def _held(picture: MemoryPicture) -> str:
    values = [value for each in picture.lines for value in each.held]
    low, high = min(values), max(values)
    pad = max((high - low) * 0.1, high * 0.01, 1.0)
    low, high = max(0.0, low - pad), high + pad
    unit = next((scale for scale in (1 << 30, 1 << 20, 1 << 10) if high - low >= scale), 1)
    said = f"memory held by {plural(picture.num_ranks, 'rank')}: from {size(min(values))} to {size(max(values))}"
    panel = _Panel(picture, lambda each: each.held, low, high, _HEIGHT)
    return panel.drawn("held", ticks(low, high, unit=unit), said)


def _used(picture: MemoryPicture) -> str:
    capacity = float(picture.capacity)
    edges = [0.0, float(picture.stable), float(picture.tight), capacity]
    share = _most_used(picture) / capacity
    said = f"used of the capacity: at most {share:.1%} of {size(capacity)}, {band(share)}"
    title = f"of {size(capacity)} ({_USED.get(picture.used_is, picture.used_is)})"
    return _Panel(picture, lambda each: each.used, 0.0, capacity, _LOW).drawn(title, edges, said, bands=True)


class _Panel:
    """One drawing of the lines: values from ``low`` to ``high`` along the steps."""

    def __init__(
        self, picture: MemoryPicture, values: Callable[[MemoryLine], list[int]], low: float, high: float, height: int
    ) -> None:
        self.lines = [each for each in picture.lines if each.steps]
        self.first, self.values, self.low, self.high, self.height = picture.first, values, low, high, height
        steps = [step for each in self.lines for step in each.steps]
        self.begin, self.end = min(steps), max(steps)
        self.marked: list[int] = [] if picture.first is None else picture.first.ranks

    def x(self, step: float) -> float:
        """Return where a step stands."""
        return scaled(step, self.begin, self.end, LEFT, WIDTH - RIGHT)

    def y(self, value: float) -> float:
        """Return where a number of bytes stands."""
        return scaled(value, self.low, self.high, _TOP + self.height, _TOP)

    def drawn(self, title: str, edges: Sequence[float], said: str, *, bands: bool = False) -> str:
        """Return the drawing, with a line across at each of ``edges``, or a band between them."""
        body = self._bands(edges) if bands else ""
        for edge in edges:
            body += line(LEFT, self.y(edge), WIDTH - RIGHT, self.y(edge))
            body += label(LEFT - 6, self.y(edge) + 4, size(edge), anchor="end")
        left = self.first is not None and self.first.step is not None and self.x(self.first.step) <= WIDTH / 2
        body += label(WIDTH - RIGHT if left else LEFT, TEXT, title, "ddp-strong", "end" if left else "start")
        for tick in ticks(self.begin, self.end, 8, whole=True):
            body += label(self.x(tick), _TOP + self.height + 18, f"{tick:.0f}", anchor="middle")
        body += label((LEFT + WIDTH - RIGHT) / 2, _TOP + self.height + 34, "training step", anchor="middle")
        ends: list[tuple[tuple[float, float], MemoryLine]] = []
        for each in sorted(self.lines, key=lambda each: each.rank in self.marked):
            points = [(self.x(step), self.y(held)) for step, held in zip(each.steps, self.values(each), strict=True)]
            body += curve(points, self._kind(each))
            if each.ended_in is not None:
                body += label(points[-1][0], points[-1][1] + 4, "✗", "ddp-first", "middle")
            elif len(points) == 1:
                body += label(points[-1][0], points[-1][1] + 4, "●", anchor="middle")
            ends.append((points[-1], each))
        return svg(_TOP + self.height + _BOTTOM, said, body + _named(ends, self.marked) + self._cut())

    def _bands(self, edges: Sequence[float]) -> str:
        body = ""
        for number, (low, high) in enumerate(pairwise(edges)):
            above, below = self.y(high), self.y(low)
            body += box(LEFT, above, WIDTH - LEFT - RIGHT, below - above, f"ddp-b{number}")
            body += label(LEFT + 6, below - max(1.0, (below - above - TEXT) / 2 + 2), _BANDS[number], "ddp-in")
        return body

    def _kind(self, each: MemoryLine) -> str:
        if each.rank is None:
            return "ddp-control"
        ranks = [other.rank for other in self.lines if other.rank is not None]
        if each.rank in self.marked and len(self.marked) < len(ranks):
            return "ddp-marked"
        return f"ddp-k{ranks.index(each.rank)}" if len(ranks) <= _FEW else ""

    def _cut(self) -> str:
        """Mark the step of the first deviation, and the ranks that it names."""
        first = self.first
        if first is None or first.step is None or not self.begin <= first.step <= self.end:
            return ""
        at = self.x(first.step)
        anchor, aside = ("end", -6) if at > WIDTH / 2 else ("start", 6)
        body = line(at, _TOP, at, _TOP + self.height, "ddp-cut")
        body += label(at + aside, _TOP - 4, f"✗ step {first.step}", "ddp-first", anchor)
        for each in self.lines:
            if each.rank in first.ranks and first.step in each.steps:
                y = self.y(self.values(each)[each.steps.index(first.step)])
                body += f'<circle cx="{at:.1f}" cy="{y:.1f}" r="6" class="ddp-ring"/>'
        return body


def _named(ends: list[tuple[tuple[float, float], MemoryLine]], marked: Sequence[int]) -> str:
    """Name the lines where they end; those that end at one place share a name."""
    found, shared = "", list[tuple[float, float, list[MemoryLine]]]()
    for (x, y), each in sorted(ends, key=lambda pair: pair[0]):
        if shared and x == shared[-1][0] and y - shared[-1][1] < TEXT + 2:
            shared[-1][2].append(each)
        else:
            shared.append((x, y, [each]))
    for x, y, group in shared:
        ranks = [each.rank for each in group if each.rank is not None]
        words = [f"rank{'' if len(ranks) == 1 else 's'} {_cut_short(listed(ranks))}"] if ranks else []
        words += ["control"] if any(each.rank is None for each in group) else []
        bad = bool(ranks) and set(ranks) <= set(marked)
        found += label(x + 10, y + 4, ", ".join(words), "ddp-first" if bad else "ddp-strong")
    return found


def _cut_short(words: str) -> str:
    return words if len(words) <= 14 else f"{words[:13]}…"


def _numbers(picture: MemoryPicture) -> str:
    steps = sorted({step for each in picture.lines for step in each.steps})
    chosen = [steps[i * (len(steps) - 1) // max(1, _MAX_COLUMNS - 1)] for i in range(min(_MAX_COLUMNS, len(steps)))]
    if picture.first is not None and picture.first.step in steps:
        chosen.append(picture.first.step)
    chosen = sorted(set(chosen))
    heads = ["process", *(f"step {step}" for step in chosen), "most held", "most used"]
    rows = [_row(picture, each, chosen) for each in picture.lines]
    return table("Bytes held, by step; a step without a number was not drawn", heads, rows)


def _row(picture: MemoryPicture, each: MemoryLine, chosen: list[int]) -> list[str]:
    held = dict(zip(each.steps, each.held, strict=True))
    name = "control" if each.rank is None else f"rank {each.rank}"
    ended = "" if each.ended_in is None else f" ✗ ended in step {each.ended_in}"
    share = f" ({each.top_used / picture.capacity:.1%})" if picture.capacity > 0 and each.rank is not None else ""
    cells = [size(held[step]) if step in held else "" for step in chosen]
    return [text(name + ended), *map(text, cells), text(size(each.top)), text(size(each.top_used) + share)]
