"""A forecast as text: a pure function."""

from collections.abc import Iterator

from ._fit import Forecast, Point, size

_BAR = 28


def render_forecast(found: Forecast) -> str:
    """Return a forecast as text, ending in a newline."""
    return "\n".join(_lines(found)) + "\n"


def _lines(found: Forecast) -> Iterator[str]:
    seq = found.points[-1].seq
    at = f" at length {seq}" if seq is not None else ""
    yield f"predicted with {found.how}{at}; {_steps(found)}"
    yield ""
    yield from _table(found)
    yield ""
    for name, held in found.added.items():
        yield f"added to each: {name} {size(held)}"
    yield from _allowance(found)
    yield f"line: {size(found.fixed)} + {size(found.per_sample)} a sample{_trust(found)}"
    if found.removed is not None:
        yield f"sharding over {found.num_ranks} ranks removes {found.removed:.0%} of the peak of the largest batch"
    if found.largest_stable is not None:
        limit = f"{found.limits.stable:.0%} of {size(found.capacity or 0)}"
        yield f"largest batch up to {limit}: {found.largest_stable}, on every rank"
    yield from (f"note: {note}" for note in found.notes)


def _steps(found: Forecast) -> str:
    if min(point.steps for point in found.points) < 2:
        return "one step alone, so that the optimizer's state may not be in it"
    return "two steps, so that the optimizer's state is in it"


def _table(found: Forecast) -> Iterator[str]:
    scale = max([*found.totals.values(), found.capacity or 0])
    verdict = "  share of capacity" if found.capacity else ""
    yield f"batch        peak  first step{verdict}"
    for point in found.points:
        total = found.totals[point.batch]
        share = f"  {found.shares[point.batch]:>6.1%} {found.bands[point.batch]:<10}" if found.capacity else ""
        first = point.first_step + total - point.peak
        yield f"{point.batch:>5}  {size(total):>10}  {size(first):>10}{share}  {_bar(found, total, scale)}"
        yield f"       {_where(point)}: {_parts(point)}"


def _bar(found: Forecast, total: int, scale: float) -> str:
    """Draw a bar; where a capacity is known it ends at the capacity, and its bands are marked on it."""
    filled = min(_BAR, max(1, round(_BAR * total / scale)))
    cells = ["#"] * filled + [" "] * (_BAR - filled)
    if found.capacity:
        for share in (found.limits.stable, found.limits.tight, 1.0):
            place = min(_BAR, round(_BAR * share * found.capacity / scale)) - 1
            cells[place] = "|" if cells[place] == " " else "+"
    return "".join(cells).rstrip()


def _where(point: Point) -> str:
    operation = point.operation.removeprefix("aten.").partition(".")[0]
    inside = f", {point.module}" if point.module else ""
    return f"in {point.phase}{f' ({operation}{inside})' if operation else ''}"


def _parts(point: Point) -> str:
    held = sorted(point.categories.items(), key=lambda item: -item[1])
    shown = [f"{name.replace('_', ' ')} {size(num)}" for name, num in held if num >= point.peak / 200]
    return ", ".join(shown)


def _allowance(found: Forecast) -> Iterator[str]:
    allowance = found.allowance
    if allowance.source == "none":
        return
    parts = [f"{name} {size(held)}" for name, held in allowance.fixed.items()]
    parts += [f"fragmentation {allowance.share:.0%}"] if allowance.share else []
    replaced = "; --allowance or --measured replaces it" if allowance.source == "default" else ""
    yield f"allowance in each ({allowance.source}): {', '.join(parts) or 'nothing'}{replaced}"


def _trust(found: Forecast) -> str:
    if len(found.points) < 2:
        return " (one batch alone: name two or more with --batch)"
    phases = " and ".join(dict.fromkeys(point.phase for point in found.points[-2:]))
    if found.same_phase:
        return f" (the two largest both peak in {phases})"
    return f" (the peak moves between the two largest, {phases}: name larger ones to trust it)"
