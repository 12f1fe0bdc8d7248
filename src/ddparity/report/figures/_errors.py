"""The error along the depth of the model, in units of the noise floor, on a scale of powers of ten."""

import math
from collections.abc import Sequence
from itertools import pairwise

from ddparity.judge import ErrorCell, ErrorMap, Finding
from ddparity.report._wording import number, plural
from ddparity.report.figures._frame import (
    LEFT,
    RIGHT,
    TEXT,
    WIDTH,
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

_TOP, _HEIGHT = 26, 180
_LOWEST, _HIGHEST = -3.0, 9.0
_MAX_POINTS = 300
_MAX_ROWS = 12
_MIN_STEPS = 4
_ROOM = 80
"""How far apart the names of two phases stand at least."""
_TITLES = {"forward": "outputs", "backward": "gradients", "optimizer": "after the step"}
_PHASES = {"collective": "backward", "clip": "backward"}


def errors_figure(found: ErrorMap | None, first: Finding | None = None) -> str:
    """Return the errors of the step that deviates first, or of the last one, and the largest of each step before."""
    cells: list[ErrorCell] = [] if found is None else found.cells
    if not cells:
        return ""
    known = {cell.step for cell in cells}
    marked = first if first is not None and first.layer == "numerics" and first.step in known else None
    step = cells[-1].step if marked is None else marked.step
    drawn = [cell for cell in cells if cell.step == step and cell.phase != "init"]
    if len(drawn) < 2 or all(_units(cell) == 0 for cell in drawn):
        return ""
    caption = f"<b>Error along the depth, step {step}</b>, in units of the noise floor: up to 1 it is rounding"
    over = _over_steps([cell for cell in cells if cell.phase != "init"], marked)
    drawings = [_along(drawn, marked), *([over] if over else [])]
    return figure(caption + _told(marked), drawings, _largest(drawn))


def _told(first: Finding | None) -> str:
    if first is None:
        return ""
    return first_told(f"{first.phase.value} of {first.name}", first.cause.code)


def _units(cell: ErrorCell) -> float:
    return cell.error / cell.floor if cell.floor > 0 else (math.inf if cell.error else 0.0)


def _power(units: float) -> float:
    """Return the power of ten of an error, within what is drawn; what is no number is drawn at the top."""
    if math.isnan(units) or units == math.inf:
        return _HIGHEST
    return min(max(math.log10(units), _LOWEST), _HIGHEST) if units > 0 else _LOWEST


class _Axes:
    """The two axes: powers of ten of noise floors upwards, ``num`` places from left to right."""

    def __init__(self, powers: Sequence[float], num: int) -> None:
        self.low, self.high = math.floor(min(-1.0, *powers)), math.ceil(max(1.0, *powers))
        self.num, self.worst = num, max(powers)

    def x(self, place: float) -> float:
        """Return where a place stands."""
        return scaled(place, 0, self.num - 1, LEFT, WIDTH - RIGHT)

    def y(self, power: float) -> float:
        """Return where a power of ten stands."""
        return scaled(power, self.low, self.high, _TOP + _HEIGHT, _TOP)

    def drawn(self, what: str, said: str, body: str, below: int) -> str:
        """Return the drawing of curves over these axes; ``what`` the places are, ``said`` what it shows."""
        lines = ""
        for power in range(self.low, self.high + 1, math.ceil((self.high - self.low) / 6)):
            lines += line(LEFT, self.y(power), WIDTH - RIGHT, self.y(power))
            lines += label(LEFT - 6, self.y(power) + 4, number(10.0**power), anchor="end")
        lines += line(LEFT, self.y(0), WIDTH - RIGHT, self.y(0), "ddp-curve ddp-control")
        lines += label(WIDTH - RIGHT + 8, self.y(0) + 4, "noise floor", "ddp-strong")
        lines += label((LEFT + WIDTH - RIGHT) / 2, _TOP + _HEIGHT + below, what, anchor="middle")
        worst = number(float(f"{10.0**self.worst:.3g}"))
        return svg(_TOP + _HEIGHT + below + 6, f"{said}: at most {worst} noise floors", lines + body)


def _by_phase(cells: Sequence[ErrorCell]) -> dict[str, list[ErrorCell]]:
    """Return the comparisons of each phase, in the order in which the phases come."""
    found: dict[str, list[ErrorCell]] = {}
    for cell in cells:
        found.setdefault(cell.phase, []).append(cell)
    return found


def _along(cells: Sequence[ErrorCell], first: Finding | None) -> str:
    """Draw one step in the order of computation, the phases side by side."""
    groups = _by_phase(cells)
    ordered = [cell for group in groups.values() for cell in group]
    powers = [_power(_units(cell)) for cell in ordered]
    axes = _Axes(powers, len(ordered))
    body, start, titled = "", 0, -_ROOM
    for kind, (phase, group) in enumerate(groups.items()):
        end = start + len(group)
        points = [(axes.x(i), axes.y(powers[i])) for i in _tops(powers, start, end)]
        body += curve(points, f"ddp-k{kind % 4}")
        if len(group) == 1:
            body += label(*points[0], "●", anchor="middle")
        if start:
            body += line(axes.x(start - 0.5), _TOP, axes.x(start - 0.5), _TOP + _HEIGHT)
        middle = axes.x((start + end - 1) / 2)
        if middle - titled > _ROOM:
            body += label(middle, _TOP - 8, _TITLES.get(phase, phase), "ddp-strong", "middle")
            titled = middle
        start = end
    return axes.drawn("order of computation", "error along the depth", body + _ring(ordered, first, axes), 18)


def _over_steps(cells: Sequence[ErrorCell], first: Finding | None) -> str:
    """Draw the largest error of each phase along the steps; too few of them are no curve."""
    steps = sorted({cell.step for cell in cells})
    if len(steps) < _MIN_STEPS:
        return ""
    worst = {
        phase: {step: max(_power(_units(cell)) for cell in group) for step, group in _by_step(found).items()}
        for phase, found in _by_phase(cells).items()
    }
    axes = _Axes([power for found in worst.values() for power in found.values()], len(steps))
    place = {step: i for i, step in enumerate(steps)}
    body, taken = "", [axes.y(0)]
    for kind, (phase, found) in enumerate(worst.items()):
        known = sorted(found)
        heights = [found[step] for step in known]
        points = [(axes.x(place[known[i]]), axes.y(heights[i])) for i in _tops(heights, 0, len(heights))]
        body += curve(points, f"ddp-k{kind % 4}")
        at = _free(points[-1][1], taken)
        body += label(points[-1][0] + 8, at + 4, _TITLES.get(phase, phase), "ddp-strong")
    if first is not None and first.step in place:
        at = axes.x(place[first.step])
        anchor, aside = ("end", -6) if at > WIDTH / 2 else ("start", 6)
        body += line(at, _TOP, at, _TOP + _HEIGHT, "ddp-cut")
        body += label(at + aside, _TOP - 4, f"✗ step {first.step}", "ddp-first", anchor)
    for i in ticks(0, len(steps) - 1, 8, whole=True):
        body += label(axes.x(i), _TOP + _HEIGHT + 18, str(steps[int(i)]), anchor="middle")
    return axes.drawn("recorded step", "the largest error along the steps", body, 34)


def _by_step(cells: Sequence[ErrorCell]) -> dict[int, list[ErrorCell]]:
    found: dict[int, list[ErrorCell]] = {}
    for cell in cells:
        found.setdefault(cell.step, []).append(cell)
    return found


def _free(wanted: float, taken: list[float]) -> float:
    """Return a height for a name near ``wanted`` that no other name has, and take it."""
    at = wanted
    while any(abs(at - other) < TEXT + 2 for other in taken):
        at -= TEXT + 2
    taken.append(at)
    return at


def _tops(powers: Sequence[float], start: int, end: int) -> list[int]:
    """Return which comparisons are drawn: of each stretch of too many, the largest."""
    num = end - start
    if num <= _MAX_POINTS:
        return list(range(start, end))
    cuts = [start + i * num // _MAX_POINTS for i in range(_MAX_POINTS + 1)]
    return [max(range(low, high), key=lambda at: powers[at]) for low, high in pairwise(cuts)]


def _ring(cells: Sequence[ErrorCell], first: Finding | None, axes: _Axes) -> str:
    """Outline the first deviation, if it is one of these."""
    if first is None:
        return ""
    phase = _PHASES.get(first.phase.value, first.phase.value)
    at = next((i for i, cell in enumerate(cells) if (cell.name, cell.phase) == (first.name, phase)), None)
    if at is None:
        return ""
    left, top = axes.x(at), axes.y(_power(_units(cells[at])))
    anchor, aside = ("end", -9) if left > WIDTH / 2 else ("start", 9)
    ring = f'<circle cx="{left:.1f}" cy="{top:.1f}" r="6" class="ddp-ring"/>'
    return ring + label(left + aside, top + 16, "✗ first", "ddp-first", anchor)


def _largest(found: Sequence[ErrorCell]) -> str:
    cells = sorted(found, key=_units, reverse=True)
    rows = [_row(cell) for cell in cells[:_MAX_ROWS]]
    return table(f"The largest of {plural(len(cells), 'comparison')}", ("name", "phase", "noise floors", "error"), rows)


def _row(cell: ErrorCell) -> list[str]:
    units, error = number(float(f"{_units(cell):.3g}")), number(cell.error)
    return [f'<span class="ddp-name">{text(cell.name)}</span>', text(cell.phase), units, error]
