"""Who took which sample: a strip a rank, from the first sample to the last."""

from collections.abc import Sequence

from ddparity.judge import SamplesPicture, SampleStrip
from ddparity.report._wording import plural
from ddparity.report.figures._frame import TEXT, WIDTH, box, figure, first_told, label, svg, table, text

_LEFT, _RIGHT, _ROW, _HIGH = 120, 20, 22, 16
_MIN_OPACITY = 0.12


def samples_figure(picture: SamplesPicture | None) -> str:
    """Return a figure for each strip: one of a training step against the control's, then one for each pass."""
    if picture is None:
        return ""
    drawn = "".join(_strip(strip) for strip in picture.strips if strip.rows)
    left = f"<p>{plural(picture.left_out, 'more pass')[:-1]}es are left out.</p>" if picture.left_out > 1 else ""
    return drawn + (left or ("<p>1 more pass is left out.</p>" if picture.left_out == 1 else ""))


def _strip(strip: SampleStrip) -> str:
    heads = ("rank", "samples", "of others than these")
    rows = [(f"rank {row.rank}", str(row.samples), str(row.others)) for row in strip.rows]
    return figure(_caption(strip), [_drawing(strip)], table("What each rank took", heads, rows))


def _heading(strip: SampleStrip) -> str:
    if strip.step is not None:
        return f"Who took which sample of the control's step {strip.step}"
    use = {True: "training", False: "evaluation", None: "entered no model"}[strip.training]
    return f"Who took which sample of {strip.dataset} ({use}), pass {strip.ordinal}"


def _caption(strip: SampleStrip) -> str:
    parts = [f"<b>{text(_heading(strip))}</b>: {plural(strip.length, 'sample')} in order, from left to right"]
    if strip.length > len(strip.repeated):
        parts.append("the stronger a cell, the more of its stretch the rank took")
    if strip.copies > 1:
        parts.append(f"each is on {strip.copies} ranks, as it should be")
    if not strip.whole:
        parts.append("not all of them were to be taken, or the run ended before")
    repeated, missing = sum(strip.repeated), sum(strip.missing)
    if repeated:
        parts.append(f"<b>+ {repeated} taken too often</b>")
    if missing:
        parts.append(f"<b>○ {missing} taken by no rank, or not whole</b>")
    if others := sum(row.others for row in strip.rows):
        parts.append(f"{others} that ranks took are none of these")
    if left := strip.num_ranks - len(strip.rows):
        parts.append(f"{plural(left, 'more rank')} left out")
    return "; ".join(parts) + _first(strip)


def _first(strip: SampleStrip) -> str:
    if strip.first is None:
        return ""
    low, high = _stretch(strip, strip.first)
    which = f"sample {low}" if high - low == 1 else f"samples {low} to {high - 1}"
    return first_told(which, strip.code)


def _stretch(strip: SampleStrip, number: int) -> tuple[int, int]:
    num = max(1, len(strip.repeated))
    return number * strip.length // num, (number + 1) * strip.length // num


def _drawing(strip: SampleStrip) -> str:
    num = max(1, len(strip.repeated))
    wide = (WIDTH - _LEFT - _RIGHT) / num
    body, y = "", 4.0
    for row in strip.rows:
        body += label(_LEFT - 8, y + TEXT, f"rank {row.rank}", "ddp-strong", "end")
        body += box(_LEFT, y, wide * num, _HIGH, "ddp-row") + _cells(row.shares, y, wide)
        y += _ROW
    for name, glyph, counts in (("too often", "+", strip.repeated), ("by none", "○", strip.missing)):
        if any(counts):
            body += label(_LEFT - 8, y + TEXT, f"{name} {glyph}", "ddp-strong", "end")
            body += "".join(
                label(_LEFT + (i + 0.5) * wide, y + TEXT, glyph, "ddp-strong", "middle")
                for i, count in enumerate(counts)
                if count
            )
            y += _ROW
    if strip.first is not None:
        x = _LEFT + strip.first * wide
        body += box(x - 1, 2, wide + 2, y - 4, "ddp-ring")
        right = x > WIDTH / 2
        words = f"✗ first: {_stretch(strip, strip.first)[0]}"
        body += label(x + (wide if right else 0), y + TEXT, words, "ddp-first", "end" if right else "start")
        y += _ROW
    wrong = f"{sum(strip.repeated)} taken too often, {sum(strip.missing)} by none"
    said = f"{_heading(strip)}: {plural(strip.num_ranks, 'rank')}, {wrong}"
    return svg(y + 2, said, body)


def _cells(shares: Sequence[float], y: float, wide: float) -> str:
    """Draw the cells of a row; neighbours that are alike are one."""
    found, start = "", 0
    for i in range(1, len(shares) + 1):
        if i < len(shares) and shares[i] == shares[start]:
            continue
        if shares[start] > 0:
            opacity = max(_MIN_OPACITY, min(shares[start], 1.0))
            more = "" if opacity >= 1 else f' fill-opacity="{opacity:.2f}"'
            found += box(_LEFT + start * wide, y, (i - start) * wide, _HIGH, "ddp-cell", more)
        start = i
    return found
