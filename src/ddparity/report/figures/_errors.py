"""The error along the depth of the model, in units of the noise floor, on a scale of powers of ten."""

import math
from collections.abc import Callable, Sequence

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
)

_TOP, _HEIGHT, _BOTTOM = 26, 180, 40
_LOWEST, _HIGHEST = -3.0, 9.0
_MAX_POINTS = 300
_MAX_ROWS = 12
_SERIES = (("forward", "outputs"), ("backward", "gradients"), ("optimizer", "after the step"))
_PHASES = {"collective": "backward", "clip": "backward"}


def errors_figure(found: ErrorMap | None, first: Finding | None = None) -> str:
    """Return the errors of the step that deviates first, or of the last one, in the order of computation."""
    cells: list[ErrorCell] = [] if found is None else found.cells
    if not cells:
        return ""
    known = {cell.step for cell in cells}
    marked = first if first is not None and first.layer == "numerics" and first.step in known else None
    step = cells[-1].step if marked is None else marked.step
    series = [(name, said, [c for c in cells if c.step == step and c.phase == name]) for name, said in _SERIES]
    series = [each for each in series if len(each[2]) > 1]
    if not series:
        return ""
    caption = f"<b>Error along the depth, step {step}</b>, in units of the noise floor: up to 1 it is rounding"
    return figure(caption + _told(marked), [_drawing(series, marked)], _largest(series))


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


def _drawing(series: Sequence[tuple[str, str, list[ErrorCell]]], first: Finding | None) -> str:
    powers = [_power(_units(cell)) for _, _, cells in series for cell in cells]
    low, high = math.floor(min(-1.0, *powers)), math.ceil(max(1.0, *powers))

    def y(power: float) -> float:
        return scaled(power, low, high, _TOP + _HEIGHT, _TOP)

    body = ""
    for power in range(low, high + 1, max(1, (high - low) // 6)):
        body += line(LEFT, y(power), WIDTH - RIGHT, y(power))
        body += label(LEFT - 6, y(power) + 4, number(10.0**power), anchor="end")
    body += line(LEFT, y(0), WIDTH - RIGHT, y(0), "ddp-curve ddp-control")
    body += label(WIDTH - RIGHT + 8, y(0) + 4, "noise floor", "ddp-strong")
    body += label((LEFT + WIDTH - RIGHT) / 2, _TOP + _HEIGHT + 34, "order of computation", anchor="middle")
    taken = [y(0)]
    for index, (phase, said, cells) in enumerate(series):
        places = _places(cells)
        points = [(x, y(_power(_units(cells[i])))) for i, x in places]
        body += curve(points, f"ddp-k{index}")
        at = _free(points[-1][1], taken)
        body += label(WIDTH - RIGHT + 8, at + 4, said, "ddp-strong")
        if first is not None and _PHASES.get(first.phase.value, first.phase.value) == phase:
            body += _ring(cells, first, y)
    worst = max(powers)
    return svg(_TOP + _HEIGHT + _BOTTOM, f"error along the depth: at most {number(10.0**worst)} noise floors", body)


def _places(cells: Sequence[ErrorCell]) -> list[tuple[int, float]]:
    """Return which cells are drawn and where: of each stretch of too many, the largest."""
    num = len(cells)
    chosen = list(range(num))
    if num > _MAX_POINTS:
        chosen = [
            max(range(i * num // _MAX_POINTS, (i + 1) * num // _MAX_POINTS), key=lambda at: _power(_units(cells[at])))
            for i in range(_MAX_POINTS)
        ]
    return [(i, scaled(i, 0, num - 1, LEFT, WIDTH - RIGHT)) for i in chosen]


def _free(wanted: float, taken: list[float]) -> float:
    """Return a height for a name near ``wanted`` that no other name has."""
    at = wanted
    while any(abs(at - other) < TEXT + 2 for other in taken):
        at -= TEXT + 2
    taken.append(at)
    return at


def _ring(cells: Sequence[ErrorCell], first: Finding, y: Callable[[float], float]) -> str:
    for i, cell in enumerate(cells):
        if cell.name == first.name:
            x, height = scaled(i, 0, len(cells) - 1, LEFT, WIDTH - RIGHT), y(_power(_units(cell)))
            right = x > WIDTH / 2
            words = label(x + (-9 if right else 9), height - 8, "✗ first", "ddp-first", "end" if right else "start")
            return f'<circle cx="{x:.1f}" cy="{height:.1f}" r="6" class="ddp-ring"/>{words}'
    return ""


def _largest(series: Sequence[tuple[str, str, list[ErrorCell]]]) -> str:
    cells = sorted((cell for _, _, found in series for cell in found), key=_units, reverse=True)
    rows = [_row(cell) for cell in cells[:_MAX_ROWS]]
    return table(f"The largest of {plural(len(cells), 'comparison')}", ("name", "phase", "noise floors", "error"), rows)


def _row(cell: ErrorCell) -> list[str]:
    units, error = number(float(f"{_units(cell):.3g}")), number(cell.error)
    return [f'<span class="ddp-name">{text(cell.name)}</span>', text(cell.phase), units, error]
