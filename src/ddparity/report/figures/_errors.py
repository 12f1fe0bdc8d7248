"""The error along the depth of the model, in units of the noise floor, on a scale of powers of ten."""

import math
from collections.abc import Callable, Sequence
from itertools import groupby, pairwise

from ddparity.judge import ErrorCell, ErrorMap, Finding
from ddparity.report._wording import number, plural
from ddparity.report.figures._frame import (
    LEFT,
    RIGHT,
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
)

_TOP, _HEIGHT, _BOTTOM = 26, 180, 26
_LOWEST, _HIGHEST = -3.0, 9.0
_MAX_POINTS = 300
_MAX_ROWS = 12
_ROOM = 80
"""How far apart the names of two phases stand at least."""
_TITLES = {"forward": "outputs", "backward": "gradients", "optimizer": "after the step"}
_PHASES = {"collective": "backward", "clip": "backward"}


def errors_figure(found: ErrorMap | None, first: Finding | None = None) -> str:
    """Return the errors of the step that deviates first, or of the last one, in the order of computation."""
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
    return figure(caption + _told(marked), [_drawing(drawn, marked)], _largest(drawn))


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


def _drawing(cells: Sequence[ErrorCell], first: Finding | None) -> str:
    powers = [_power(_units(cell)) for cell in cells]
    low, high = math.floor(min(-1.0, *powers)), math.ceil(max(1.0, *powers))

    def x(index: float) -> float:
        return scaled(index, 0, len(cells) - 1, LEFT, WIDTH - RIGHT)

    def y(power: float) -> float:
        return scaled(power, low, high, _TOP + _HEIGHT, _TOP)

    body = ""
    for power in range(low, high + 1, math.ceil((high - low) / 6)):
        body += line(LEFT, y(power), WIDTH - RIGHT, y(power))
        body += label(LEFT - 6, y(power) + 4, number(10.0**power), anchor="end")
    body += line(LEFT, y(0), WIDTH - RIGHT, y(0), "ddp-curve ddp-control")
    body += label(WIDTH - RIGHT + 8, y(0) + 4, "noise floor", "ddp-strong")
    body += label((LEFT + WIDTH - RIGHT) / 2, _TOP + _HEIGHT + 18, "order of computation", anchor="middle")
    start, titled = 0, -_ROOM
    for kind, (phase, group) in enumerate((phase, list(group)) for phase, group in groupby(cells, lambda c: c.phase)):
        end = start + len(group)
        points = [(x(i), y(powers[i])) for i in _tops(powers, start, end)]
        body += curve(points, f"ddp-k{kind % 4}")
        if len(group) == 1:
            body += label(*points[0], "●", anchor="middle")
        if start:
            body += line(x(start - 0.5), _TOP, x(start - 0.5), _TOP + _HEIGHT)
        middle = x((start + end - 1) / 2)
        if middle - titled > _ROOM:
            body += label(middle, _TOP - 8, _TITLES.get(phase, phase), "ddp-strong", "middle")
            titled = middle
        start = end
    worst = f"at most {number(float(f'{10.0 ** max(powers):.3g}'))} noise floors"
    return svg(_TOP + _HEIGHT + _BOTTOM, f"error along the depth: {worst}", body + _ring(cells, first, x, y))


def _tops(powers: Sequence[float], start: int, end: int) -> list[int]:
    """Return which comparisons are drawn: of each stretch of too many, the largest."""
    num = end - start
    if num <= _MAX_POINTS:
        return list(range(start, end))
    cuts = [start + i * num // _MAX_POINTS for i in range(_MAX_POINTS + 1)]
    return [max(range(low, high), key=lambda at: powers[at]) for low, high in pairwise(cuts)]


def _ring(
    cells: Sequence[ErrorCell], first: Finding | None, x: Callable[[float], float], y: Callable[[float], float]
) -> str:
    """Outline the first deviation, if it is one of these."""
    if first is None:
        return ""
    phase = _PHASES.get(first.phase.value, first.phase.value)
    at = next((i for i, cell in enumerate(cells) if (cell.name, cell.phase) == (first.name, phase)), None)
    if at is None:
        return ""
    left, top = x(at), y(_power(_units(cells[at])))
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
