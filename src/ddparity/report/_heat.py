"""The map of errors as tables: along the computation, and over the ranks. Colours repeat what the numbers say."""

import math
from collections.abc import Iterable
from html import escape

from ddparity._plain import plain
from ddparity.judge import ErrorCell, ErrorMap, Finding
from ddparity.judge._bounded import some_ranks
from ddparity.report._wording import number

_MAX_ROWS, _MAX_COLUMNS = 60, 16
_COLUMNS = ("init", "forward", "loss", "backward", "optimizer")
_TITLES = {"init": "start", "forward": "output", "loss": "loss", "backward": "gradient", "optimizer": "after the step"}
_PHASES = {"collective": "backward", "clip": "backward"}
RULES = """
.heat td { text-align: right; font-variant-numeric: tabular-nums; padding: .2rem .5rem; min-width: 4.5rem; }
.heat th { padding: .2rem .5rem; font-weight: 400; } .heat thead th { font-weight: 700; }
.heat tbody th { font-family: ui-monospace, monospace; overflow-wrap: anywhere; }
.heat .h0 { background: var(--h0); } .heat .h1 { background: var(--h1); } .heat .h2 { background: var(--h2); }
.heat .h3 { background: var(--h3); } .heat .first { outline: .2rem solid var(--deviates); outline-offset: -.2rem; }
"""
LIGHT = "--h0: #e6f4ea; --h1: #fff1d6; --h2: #ffdcc2; --h3: #ffc9c9;"
DARK = "--h0: #10301b; --h1: #3b2f10; --h2: #4a2a12; --h3: #571d1d;"
STYLE = f"{RULES}:root {{ {LIGHT} }} @media (prefers-color-scheme: dark) {{ :root {{ {DARK} }} }}"


def heat(found: ErrorMap, first: Finding | None) -> str:
    """Return the errors of the step that deviates first, or of the last one, as HTML tables.

    A number is the relative error in units of its noise floor: up to 1 it is rounding.
    """
    if not found.cells:
        return ""
    known = [cell.step for cell in found.cells]
    step = first.step if first is not None and first.layer == "numerics" and first.step in known else known[-1]
    cells = [cell for cell in found.cells if cell.step == step]
    return _along(cells, step, first) + _over_steps(found.cells) + _over_ranks(cells, step)


def _along(cells: list[ErrorCell], step: int, first: Finding | None) -> str:
    columns = [name for name in _COLUMNS if any(cell.phase == name for cell in cells)]
    rows: dict[str, dict[str, float]] = {}
    for cell in cells:
        rows.setdefault(cell.name, {}).setdefault(cell.phase, _units(cell.error, cell.floor))
    at = (
        None if first is None or first.step != step else (first.name, _PHASES.get(first.phase.value, first.phase.value))
    )
    names, left = _chosen(list(rows), None if at is None else at[0])
    body = [(name, [(rows[name].get(column), (name, column) == at) for column in columns]) for name in names]
    heads = [_TITLES[column] for column in columns]
    caption = f"Step {step}, in the order of computation: error in units of the noise floor. Up to 1 is rounding"
    return _table(caption, heads, body) + _rest(left)


def _over_steps(cells: list[ErrorCell]) -> str:
    steps = sorted({cell.step for cell in cells})
    if len(steps) < 2:
        return ""
    worst: dict[tuple[str, int], float] = {}
    for cell in cells:
        key = (cell.phase, cell.step)
        worst[key] = max(worst.get(key, 0.0), _units(cell.error, cell.floor))
    phases = [name for name in _COLUMNS if any(phase == name for phase, _ in worst)]
    shown = steps[-_MAX_COLUMNS:]
    body = [(_TITLES[phase], [(worst.get((phase, step)), False) for step in shown]) for phase in phases]
    left = f"; {len(steps) - len(shown)} earlier steps are left out" if len(shown) < len(steps) else ""
    caption = f"Along the steps: the largest error of each kind{left}"
    return _table(caption, [f"step {step}" for step in shown], body)


def _over_ranks(cells: list[ErrorCell], step: int) -> str:
    held = [cell for cell in cells if cell.phase == "backward" and len(cell.by_rank) > 1]
    if not held:
        return ""
    by_name = {cell.name: cell for cell in held}
    worst = max(held, key=lambda cell: max(cell.by_rank.values()))
    every = {rank for cell in held for rank in cell.by_rank}
    ranks = some_ranks(every, [max(worst.by_rank, key=lambda rank: worst.by_rank[rank])], _MAX_COLUMNS)
    names, left = _chosen(list(by_name), worst.name)
    body = []
    for name in names:
        cell = by_name[name]
        units = [_units(cell.by_rank[rank], cell.floor) if rank in cell.by_rank else None for rank in ranks]
        body.append((name, [(each, False) for each in units]))
    more = f"; {len(every) - len(ranks)} more ranks are left out" if len(every) > len(ranks) else ""
    caption = f"Step {step}, gradients that the optimizer reads, rank by rank, against the control's{more}"
    return _table(caption, [f"rank {rank}" for rank in ranks], body) + _rest(left)


def _units(error: float, floor: float) -> float:
    return error / floor if floor > 0 else (math.inf if error else 0.0)


def _chosen(names: list[str], around: str | None) -> tuple[list[str], int]:
    """Return at most so many names, the one that matters among them, and how many are left out."""
    if len(names) <= _MAX_ROWS:
        return names, 0
    at = names.index(around) if around in names else 0
    start = max(0, min(at - _MAX_ROWS // 3, len(names) - _MAX_ROWS))
    return names[start : start + _MAX_ROWS], len(names) - _MAX_ROWS


def _rest(left: int) -> str:
    return f'<p class="soft">{left} more rows, before and after these, are left out.</p>' if left else ""


def _table(caption: str, heads: Iterable[str], body: Iterable[tuple[str, list[tuple[float | None, bool]]]]) -> str:
    head = "".join(f'<th scope="col">{escape(text)}</th>' for text in heads)
    rows = "".join(
        f'<tr><th scope="row">{escape(plain(name))}</th>{"".join(_cell(*cell) for cell in cells)}</tr>'
        for name, cells in body
    )
    return (
        f'<div class="wide" tabindex="0"><table class="heat"><caption class="soft">{escape(caption)}</caption>'
        f'<thead><tr><th scope="col">name</th>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
    )


def _cell(value: float | None, first: bool) -> str:
    if value is None:
        return "<td></td>"
    level = 0 if value <= 1 else 1 if value <= 10 else 2 if value <= 1000 else 3
    mark = " <b>first</b>" if first else ""
    return f'<td class="h{level}{" first" if first else ""}">{number(float(f"{value:.2g}"))}{mark}</td>'
