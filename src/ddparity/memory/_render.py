"""A forecast as text and as a curve: pure functions."""

from collections.abc import Iterator

from ._fit import STABLE, TIGHT, Forecast, size

_BAR = 32
_WIDTH, _HEIGHT, _LEFT, _TOP = 640, 320, 70, 20


def render_forecast(found: Forecast) -> str:
    """Return a forecast as text, ending in a newline."""
    return "\n".join(_lines(found)) + "\n"


def _lines(found: Forecast) -> Iterator[str]:
    yield f"predicted with {found.how}; two steps, so that the optimizer's state is in it"
    most = max([*found.totals.values(), found.capacity or 0])
    yield ""
    yield "batch       peak  first step  share      peak by category"
    for point in found.points:
        total = found.totals[point.batch]
        share = f"{found.shares[point.batch]:.0%} {found.bands[point.batch]}" if found.capacity else ""
        bar = "#" * max(1, round(_BAR * total / most))
        first = point.first_step + total - point.peak
        yield f"{point.batch:>5}  {size(total):>10}  {size(first):>10}  {share:<13}  {bar}"
        parts = ", ".join(f"{name} {size(held)}" for name, held in _by_size(point.categories))
        yield f"       in {point.phase}: {parts}"
    yield ""
    for name, held in found.added.items():
        yield f"added to each: {name} {size(held)}"
    yield f"line: {size(found.fixed)} + {size(found.per_sample)} a sample{_trust(found)}"
    if found.largest_stable is not None:
        yield f"largest batch up to {STABLE:.0%} of {size(found.capacity or 0)}: {found.largest_stable}, on every rank"


def _by_size(categories: dict[str, int]) -> list[tuple[str, int]]:
    return sorted(categories.items(), key=lambda item: -item[1])


def _trust(found: Forecast) -> str:
    if len(found.points) < 2:
        return " (one batch alone: name two or more with --batch)"
    return "" if found.same_phase else " (the peak changes its phase between the two largest: name larger ones)"


def render_curve(found: Forecast) -> str:
    """Return peak against batch as SVG, with the bands of the capacity; colours are never the only sign."""
    most = max([*found.totals.values(), found.capacity or 0]) * 1.05
    last = max(found.totals)
    rows = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" font-family="sans-serif"'
        f' font-size="12"><title>Predicted peak by batch size</title>'
    ]
    if found.capacity:
        for share, name in ((STABLE, "stable"), (TIGHT, "tight"), (1.0, "capacity")):
            at = _y(share * found.capacity, most)
            rows.append(
                f'<path d="M{_LEFT} {at:.1f}H{_WIDTH - 10}" stroke="currentColor" stroke-dasharray="4 4" fill="none"/>'
                f'<text x="{_LEFT + 4}" y="{at - 3:.1f}" fill="currentColor">{name}: {size(share * found.capacity)}'
                "</text>"
            )
    places = [(_x(batch, last), _y(total, most), batch, total) for batch, total in found.totals.items()]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y, *_ in places)
    rows.append(f'<polyline points="{line}" fill="none" stroke="currentColor" stroke-width="2"/>')
    for x, y, batch, total in places:
        rows.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="currentColor"><title>{batch}: {size(total)}</title>'
            f'</circle><text x="{x:.1f}" y="{_HEIGHT - 8}" text-anchor="middle" fill="currentColor">{batch}</text>'
        )
    rows.append("</svg>\n")
    return "".join(rows)


def _x(batch: int, last: int) -> float:
    return _LEFT + (_WIDTH - _LEFT - 30) * batch / last


def _y(held: float, most: float) -> float:
    return _TOP + (_HEIGHT - _TOP - 30) * (1 - held / most)
