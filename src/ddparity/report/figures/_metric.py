"""A metric as a curve: numbers in, escaped markup out. The curve is SVG; the numbers stand in a table beside it."""

from collections.abc import Sequence
from typing import Any

from ddparity.report.figures._frame import curve, figure, label, line, scaled, svg, table, text

_WIDTH, _HEIGHT, _MARGIN = 320, 140, 8
_MAX_ROWS = 50


def metric_figure(name: str, points: Sequence[dict[str, Any]]) -> str:
    """Return one metric's figure.

    Args:
        name: The metric.
        points: ``value`` (a number, or the word nan, inf or -inf) and ``step`` (or None: points are then counted).
    """
    places = [(index if point["step"] is None else point["step"], point["value"]) for index, point in enumerate(points)]
    numbers = [(x, value) for x, value in places if isinstance(value, int | float)]
    words = len(places) - len(numbers)
    last = _short(places[-1][1])
    said = f"{name}: last value {last}, {len(places)} points"
    if words:
        said += f", {words} of them not finite"
    drawings = [_curve(said, numbers)] if len(numbers) > 1 else []
    finite = f" ({words} not finite)" if words else ""
    caption = f'<span class="ddp-name">{text(name)}</span> <b>{text(last)}</b>{finite}'
    rows = [(str(x), text(_short(value))) for x, value in places[-_MAX_ROWS:]]
    numbered = table(f"{min(len(places), _MAX_ROWS)} of {len(places)} values", ("step", "value"), rows)
    return figure(caption, drawings, numbered, small=True)


def _curve(said: str, numbers: Sequence[tuple[float, float]]) -> str:
    xs, ys = [x for x, _ in numbers], [y for _, y in numbers]
    low, high = min(ys), max(ys)
    points = [
        (
            scaled(x, min(xs), max(xs), _MARGIN, _WIDTH - _MARGIN),
            scaled(y, low, high, _HEIGHT - _MARGIN, _MARGIN),
        )
        for x, y in numbers
    ]
    body = line(0, _HEIGHT, _WIDTH, _HEIGHT) + curve(points, "ddp-k0")
    return svg(_HEIGHT, said, body + label(2, 12, _short(high)) + label(2, _HEIGHT - 4, _short(low)), _WIDTH)


def _short(value: Any) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)
