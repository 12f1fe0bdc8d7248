"""What all pictures share: the frame, the axes, the table of numbers, and their one style sheet."""

import math
from collections.abc import Iterable, Sequence
from html import escape

from ddparity._plain import plain

WIDTH = 960
LEFT, RIGHT = 88, 150
"""Room for the numbers of the axis and for the names of the lines."""
TEXT = 12
"""Height of a line of text."""
STYLE = """
.ddp-figure { color-scheme: light dark; --ddp-page: #fff; --ddp-text: #1b1f24; --ddp-soft: #57606a; --ddp-line: #d0d7de;
  --ddp-bad: #b3121d; --ddp-c0: #0a4fa3; --ddp-c1: #8a3b00; --ddp-c2: #00695c; --ddp-c3: #6f2c91;
  --ddp-b0: #e6f4ea; --ddp-b1: #fff1d6; --ddp-b2: #ffdcdc; --ddp-p0: #d6e4f7; --ddp-p1: #e9dff2; }
@media (prefers-color-scheme: dark) { .ddp-figure { --ddp-page: #0f1216; --ddp-text: #e6e9ee; --ddp-soft: #a3adb8;
  --ddp-line: #353c45; --ddp-bad: #ff8f87; --ddp-c0: #79b0ff; --ddp-c1: #ffab70; --ddp-c2: #5fd0c0; --ddp-c3: #d9a6f5;
  --ddp-b0: #10301b; --ddp-b1: #3b2f10; --ddp-b2: #4d1a1a; --ddp-p0: #1d3350; --ddp-p1: #372545; } }
.ddp-figure { margin: 0 0 1.25rem; padding: .75rem; background: var(--ddp-page); color: var(--ddp-text);
  border: 1px solid var(--ddp-line); border-radius: .5rem; }
.ddp-figure figcaption { margin-bottom: .5rem; overflow-wrap: anywhere; }
.ddp-figure .ddp-soft { color: var(--ddp-soft); } .ddp-figure .ddp-bad { color: var(--ddp-bad); font-weight: 700; }
.ddp-figure .ddp-wide { overflow-x: auto; }
.ddp-figure svg { display: block; width: 100%; min-width: 40rem; max-width: 60rem; height: auto; background: none; }
.ddp-figure.ddp-small svg { min-width: 0; }
.ddp-figure svg text { fill: var(--ddp-soft); font: 12px system-ui, sans-serif; paint-order: stroke;
  stroke: var(--ddp-page); stroke-width: 3px; stroke-linejoin: round; }
.ddp-figure svg .ddp-in { stroke: none; } .ddp-figure svg .ddp-on { stroke: none; fill: var(--ddp-page); }
.ddp-figure svg .ddp-strong { fill: var(--ddp-text); font-weight: 600; }
.ddp-figure svg .ddp-first { fill: var(--ddp-bad); font-weight: 700; }
.ddp-figure svg .ddp-axis { stroke: var(--ddp-line); fill: none; }
.ddp-figure svg .ddp-cut { stroke: var(--ddp-bad); stroke-dasharray: 2 3; fill: none; stroke-width: 1.5; }
.ddp-figure svg .ddp-ring { stroke: var(--ddp-bad); fill: none; stroke-width: 2.5; }
.ddp-figure svg .ddp-curve { fill: none; stroke: var(--ddp-soft); stroke-width: 1.25; stroke-linejoin: round; }
.ddp-figure svg .ddp-control { stroke-dasharray: 7 4; stroke-width: 1.75; stroke: var(--ddp-text); }
.ddp-figure svg .ddp-k0 { stroke: var(--ddp-c0); stroke-width: 2; }
.ddp-figure svg .ddp-k1 { stroke: var(--ddp-c1); stroke-width: 2; stroke-dasharray: 9 2; }
.ddp-figure svg .ddp-k2 { stroke: var(--ddp-c2); stroke-width: 2; stroke-dasharray: 2 2; }
.ddp-figure svg .ddp-k3 { stroke: var(--ddp-c3); stroke-width: 2; stroke-dasharray: 9 2 2 2; }
.ddp-figure svg .ddp-marked { stroke: var(--ddp-bad); stroke-width: 2.5; }
.ddp-figure svg .ddp-b0 { fill: var(--ddp-b0); } .ddp-figure svg .ddp-b1 { fill: var(--ddp-b1); }
.ddp-figure svg .ddp-b2 { fill: var(--ddp-b2); } .ddp-figure svg .ddp-cell { fill: var(--ddp-c0); }
.ddp-figure svg .ddp-row { fill: none; stroke: var(--ddp-line); }
.ddp-figure svg .ddp-call { fill: var(--ddp-c0); } .ddp-figure svg .ddp-p0 { fill: var(--ddp-p0); }
.ddp-figure svg .ddp-p1 { fill: var(--ddp-p1); } .ddp-figure svg .ddp-open { fill: var(--ddp-b2); }
.ddp-figure tr { background: none; } .ddp-figure table { border-collapse: collapse; width: 100%; font-size: .9rem; }
.ddp-figure caption { text-align: left; color: var(--ddp-soft); padding: .25rem 0; }
.ddp-figure th, .ddp-figure td { text-align: left; vertical-align: top; padding: .25rem .6rem; color: var(--ddp-text);
  background: none; border: 0; border-bottom: 1px solid var(--ddp-line); font-variant-numeric: tabular-nums; }
.ddp-figure thead th { font-weight: 700; } .ddp-figure tbody th { font-weight: 400; }
.ddp-figure summary { cursor: pointer; padding: .25rem 0; }
.ddp-figure code, .ddp-figure .ddp-name { font-family: ui-monospace, monospace; overflow-wrap: anywhere; }
"""


def text(value: object) -> str:
    """Return a value as markup: on one line, without control characters, escaped."""
    return escape(plain(str(value)))


def first_told(where: str, code: str, more: str = "") -> str:
    """Return the line of a caption that names the first deviation; none of it is markup yet."""
    return f'<br><span class="ddp-bad">✗ first deviation: {text(where)}</span>{text(more)} (<code>{text(code)}</code>)'


def figure(caption: str, drawings: Iterable[str], table: str = "", *, small: bool = False) -> str:
    """Return the frame: a caption of markup, the drawings, and the table of numbers to be opened."""
    drawn = "".join(f'<div class="ddp-wide" tabindex="0">{drawing}</div>' for drawing in drawings)
    numbers = f"<details><summary>The numbers</summary>{table}</details>" if table else ""
    kind = "ddp-figure ddp-small" if small else "ddp-figure"
    return f'<figure class="{kind}"><figcaption>{caption}</figcaption>{drawn}{numbers}</figure>'


def svg(height: float, said: str, body: str, width: int = WIDTH) -> str:
    """Return a drawing; ``said`` is what it shows, in words."""
    size = f'viewBox="0 0 {width} {height:.0f}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{text(said)}">{body}</svg>'


def label(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    """Return words in a drawing; ``words`` are no markup yet."""
    more = (f' class="{kind}"' if kind else "") + (f' text-anchor="{anchor}"' if anchor != "start" else "")
    return f'<text x="{x:.1f}" y="{y:.1f}"{more}>{text(words)}</text>'


def box(x: float, y: float, width: float, height: float, kind: str, more: str = "", title: str = "") -> str:
    """Return a rectangle; ``title`` is what it says to who points at it."""
    at = f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 0):.1f}" height="{height:.1f}" class="{kind}"{more}'
    return f"{at}><title>{text(title)}</title></rect>" if title else f"{at}/>"


def line(x1: float, y1: float, x2: float, y2: float, kind: str = "ddp-axis") -> str:
    """Return a straight line."""
    return f'<path d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}" class="{kind}"/>'


def curve(points: Iterable[tuple[float, float]], kind: str) -> str:
    """Return a line through points."""
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{path}" class="ddp-curve {kind}"/>'


def table(caption: str, heads: Iterable[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; cells are markup, and the first of each row is its head."""
    head = "".join(f'<th scope="col">{text(each)}</th>' for each in heads)
    body = "".join(
        f'<tr><th scope="row">{first}</th>{"".join(f"<td>{cell}</td>" for cell in rest)}</tr>' for first, *rest in rows
    )
    return (
        f'<div class="ddp-wide" tabindex="0"><table><caption>{text(caption)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def scaled(value: float, low: float, high: float, start: float, end: float) -> float:
    """Return where a value between ``low`` and ``high`` stands between ``start`` and ``end``; none is beyond them."""
    share = 0.5 if high <= low else (value - low) / (high - low)
    return start + min(max(share, 0.0), 1.0) * (end - start)


def ticks(low: float, high: float, most: int = 5, *, whole: bool = False, unit: float = 1.0) -> list[float]:
    """Return round numbers of a unit from ``low`` to ``high``, at most so many and one more."""
    span = (high - low) / unit
    if not math.isfinite(span) or span <= 0:
        return [low]
    rough = span / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * each for each in (1, 2, 5, 10) if power * each >= rough * (1 - 1e-9)) * unit
    step = max(step, 1.0) if whole else step
    first = math.ceil(low / step - 1e-9)
    return [number * step for number in range(first, math.floor(high / step + 1e-9) + 1)]
