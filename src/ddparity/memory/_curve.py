"""Peak against batch as SVG, with the bands of the capacity: a pure function. Colour is never the only sign."""

from collections.abc import Iterator
from html import escape

from ._fit import Forecast, size

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 760, 400, 92, 24, 40, 48
_BAND_FILLS = (("STABLE", "#2e7d32", 0.10), ("TIGHT", "#b26a00", 0.14), ("OOM-PRONE", "#c62828", 0.14))
_DASHES = ("", "7 4", "2 4", "10 3 2 3")
_STYLE = "svg{color:#1b1b1b;background:#fff}@media(prefers-color-scheme:dark){svg{color:#e8e8e8;background:#121212}}"


def render_curve(*forecasts: Forecast) -> str:
    """Return one picture of forecasts that share a capacity; several where there are several lengths of sequences."""
    return "".join(_rows(forecasts)) + "</svg>\n"


def _rows(forecasts: tuple[Forecast, ...]) -> Iterator[str]:
    capacity = forecasts[0].capacity
    most = max([capacity or 0, *(total for each in forecasts for total in each.totals.values())]) * 1.06
    last = max(max(each.totals) for each in forecasts)
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img"'
        f' font-family="system-ui, sans-serif" font-size="12"><style>{_STYLE}</style>'
        f"<title>{escape(_title(forecasts))}</title>"
        f'<text x="{_LEFT}" y="20" font-size="14" fill="currentColor">{escape(_title(forecasts))}</text>'
    )
    if capacity:
        yield from _bands(forecasts[0], capacity, most)
    yield from _axes(forecasts, most, last)
    for number, each in enumerate(forecasts):
        yield from _line(each, number, most, last, label=len(forecasts) > 1)


def _title(forecasts: tuple[Forecast, ...]) -> str:
    found = forecasts[0]
    wrapped = f", {found.parallel} over {found.num_ranks} ranks" if found.parallel != "none" else ""
    return f"Predicted peak of a step by batch size of a rank{wrapped}"


def _bands(found: Forecast, capacity: int, most: float) -> Iterator[str]:
    edges = [0.0, found.limits.stable * capacity, found.limits.tight * capacity, most]
    for (name, fill, opacity), low, high in zip(_BAND_FILLS, edges, edges[1:], strict=False):
        top, bottom = _y(high, most), _y(low, most)
        width = _WIDTH - _LEFT - _RIGHT
        yield (
            f'<rect x="{_LEFT}" y="{top:.1f}" width="{width}" height="{bottom - top:.1f}" fill="{fill}"'
            f' fill-opacity="{opacity}"/>'
        )
        yield _text(_WIDTH - _RIGHT - 6, max(top + 13, bottom - 5 if name == "TIGHT" else top + 13), name, "end")
    for share, high in ((found.limits.stable, edges[1]), (found.limits.tight, edges[2]), (1.0, float(capacity))):
        at = _y(high, most)
        dash = "" if share == 1.0 else ' stroke-dasharray="5 4"'
        yield f'<path d="M{_LEFT} {at:.1f}H{_WIDTH - _RIGHT}" stroke="currentColor"{dash} fill="none"/>'
        name = "capacity" if share == 1.0 else f"{share:.0%}"
        yield _text(_LEFT + 6, at - 4, f"{name}: {size(high)}", "start")


def _axes(forecasts: tuple[Forecast, ...], most: float, last: int) -> Iterator[str]:
    foot = _HEIGHT - _BOTTOM
    yield f'<path d="M{_LEFT} {_TOP}V{foot}H{_WIDTH - _RIGHT}" stroke="currentColor" fill="none"/>'
    for part in range(5):
        held = most / 1.06 * part / 4
        yield f'<path d="M{_LEFT - 4} {_y(held, most):.1f}h4" stroke="currentColor"/>'
        yield _text(_LEFT - 8, _y(held, most) + 4, size(held) if part else "0", "end")
    shown = -1e9
    for batch in sorted({batch for each in forecasts for batch in each.totals}):
        x = _x(batch, last)
        yield f'<path d="M{x:.1f} {foot}v4" stroke="currentColor"/>'
        if x - shown > 26:
            shown = x
            yield _text(x, foot + 18, str(batch), "middle")
    yield _text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 8, "batch, samples of one rank", "middle")


def _line(found: Forecast, number: int, most: float, last: int, *, label: bool) -> Iterator[str]:
    places = [(_x(batch, last), _y(total, most), batch, total) for batch, total in found.totals.items()]
    dash = f' stroke-dasharray="{_DASHES[number % 4]}"' if number % 4 else ""
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y, *_ in places)
    yield f'<polyline points="{points}" fill="none" stroke="currentColor" stroke-width="2"{dash}/>'
    for x, y, batch, total in places:
        band = found.bands.get(batch, "")
        told = f"batch {batch}: {size(total)}{f', {band}' if band else ''}"
        yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="currentColor"><title>{escape(told)}</title></circle>'
    if label and places:
        x, y, *_ = places[0]  # the names of the bands stand at the other end
        yield _text(x + 8, y + 16, f"length {found.points[-1].seq}", "start")


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="currentColor">{escape(text)}</text>'


def _x(batch: int, last: int) -> float:
    return _LEFT + (_WIDTH - _LEFT - _RIGHT - 16) * batch / last


def _y(held: float, most: float) -> float:
    return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (1 - held / most)
