"""A metric as a curve: numbers in, escaped markup out. The curve is SVG; the numbers stand in a table beside it."""

from collections.abc import Sequence
from html import escape
from typing import Any

_WIDTH, _HEIGHT, _MARGIN = 320, 140, 8
_MAX_ROWS = 50


def chart(name: str, points: Sequence[dict[str, Any]]) -> str:
    """Return one metric's figure.

    Args:
        name: The metric.
        points: ``value`` (a number, or the word nan, inf or -inf) and ``step`` (or None: points are then counted).
    """
    places = [(index if point["step"] is None else point["step"], point["value"]) for index, point in enumerate(points)]
    numbers = [(x, value) for x, value in places if isinstance(value, int | float)]
    words = len(places) - len(numbers)
    last = _short(places[-1][1])
    said = f"{escape(name)}: last value {escape(last)}, {len(places)} points"
    if words:
        said += f", {words} of them not finite"
    figure = _curve(said, numbers) if len(numbers) > 1 else ""
    rows = "".join(f"<tr><td>{x}</td><td>{escape(_short(value))}</td></tr>" for x, value in places[-_MAX_ROWS:])
    return (
        f'<figure><figcaption><span class="name">{escape(name)}</span> <b>{escape(last)}</b>'
        f"{f' ({words} not finite)' if words else ''}</figcaption>{figure}"
        f"<details><summary>{min(len(places), _MAX_ROWS)} of {len(places)} values</summary>"
        f'<table><thead><tr><th scope="col">step</th><th scope="col">value</th></tr></thead>'
        f"<tbody>{rows}</tbody></table></details></figure>"
    )


def _curve(said: str, numbers: Sequence[tuple[float, float]]) -> str:
    xs, ys = [x for x, _ in numbers], [y for _, y in numbers]
    path = " ".join(f"{_scaled(x, xs, _WIDTH):.1f},{_HEIGHT - _scaled(y, ys, _HEIGHT):.1f}" for x, y in numbers)
    low, high = escape(_short(min(ys))), escape(_short(max(ys)))
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{said}">'
        f'<line class="axis" x1="0" y1="{_HEIGHT}" x2="{_WIDTH}" y2="{_HEIGHT}"/>'
        f'<polyline class="curve" points="{path}"/>'
        f'<text x="2" y="12">{high}</text><text x="2" y="{_HEIGHT - 4}">{low}</text></svg>'
    )


def _scaled(value: float, values: Sequence[float], size: int) -> float:
    low, high = min(values), max(values)
    share = 0.5 if high == low else (value - low) / (high - low)
    return _MARGIN + share * (size - 2 * _MARGIN)


def _short(value: Any) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)
