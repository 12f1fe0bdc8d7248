"""Who took which sample: a strip a rank, from the first sample to the last."""

from collections.abc import Sequence
from itertools import groupby

from ddparity.judge import SamplesPicture, SampleStrip
from ddparity.report._wording import plural
from ddparity.report.figures._frame import TEXT, WIDTH, box, figure, first_told, label, svg, table, text

_LEFT, _RIGHT, _ROW, _HIGH = 120, 20, 22, 16
_LEVELS = 8


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
        what = "evaluation after" if strip.training is False else "training step"
        return (
            f"Who took which sample of the control's {what} {strip.step}{' steps' if strip.training is False else ''}"
        )
    use = {True: "training", False: "evaluation", None: "entered no model"}[strip.training]
    return f"Who took which sample of {strip.dataset} ({use}), pass {strip.ordinal}"


def _caption(strip: SampleStrip) -> str:
    parts = [f"<b>{text(_heading(strip))}</b>: {plural(strip.length, 'sample')} in order, from left to right"]
    if strip.length > len(strip.repeated):
        parts.append("the stronger a cell, the more of its stretch the rank took")
    if strip.copies > 1:
        parts.append(f"each is on {strip.copies} ranks")
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
    which = f"sample number {low}" if high - low == 1 else f"one of the samples {low} to {high - 1}"
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
    """Draw the cells of a row: one path for all that are as strong, in which neighbours are one."""
    levels = [0 if share <= 0 else max(1, round(min(share, 1.0) * _LEVELS)) for share in shares]
    paths: dict[int, str] = {}
    at = 0
    for level, group in groupby(levels):
        num = len(list(group))
        if level:
            size = f"M{_LEFT + at * wide:.1f} {y:.1f}h{num * wide:.1f}v{_HIGH}h-{num * wide:.1f}z"
            paths[level] = paths.get(level, "") + size
        at += num
    return "".join(_path(path, level / _LEVELS) for level, path in sorted(paths.items()))


def _path(path: str, opacity: float) -> str:
    more = "" if opacity == 1 else f' fill-opacity="{opacity:.3g}"'
    return f'<path d="{path}" class="ddp-cell"{more}/>'
