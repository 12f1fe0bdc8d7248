"""The calls between the ranks along the time: a row a rank, the call that does not fit outlined."""

from ddparity.judge import Bar, CallsPicture, CallsRow
from ddparity.report._wording import plural
from ddparity.report.figures._frame import (
    TEXT,
    WIDTH,
    box,
    figure,
    first_told,
    label,
    line,
    scaled,
    svg,
    table,
    text,
    ticks,
)

_LEFT, _RIGHT, _ROW = 88, 150, 46
_PHASE_Y, _PHASE, _CALL_Y, _CALL = 4, 12, 18, 16
_KINDS = {"data": "ddp-p1", "forward": "ddp-p0", "backward": "ddp-p1", "optimizer": "ddp-p0"}
_THIN = 1.5
_LEGEND = (
    "a bar lasts from the call to its completion, and above it stand the phases of the step: "
    "d data, f forward, b backward, o optimizer"
)
_LETTER, _LETTER_WIDTH = 9, 7


def calls_figure(picture: CallsPicture | None) -> str:
    """Return the calls of all ranks as a time line, and a table of what each asked for."""
    if picture is None or not picture.rows:
        return ""
    return figure(_caption(picture), [_drawing(picture)], _names(picture) + _ends(picture))


def _caption(picture: CallsPicture) -> str:
    steps = sorted({bar.step for row in picture.rows for bar in row.calls if bar.step >= 0})
    where = "" if not steps else (f", step {steps[0]}" if len(steps) == 1 else f", steps {steps[0]} to {steps[-1]}")
    parts = [f"<b>Calls between the ranks{where}</b>, {_time(picture.span, picture.span)} from left to right"]
    parts.append(_LEGEND)
    if picture.several_hosts:
        parts.append("the clocks of several hosts need not agree")
    if left := sum(row.left_out for row in picture.rows):
        parts.append(f"{plural(left, 'earlier call')} left out")
    if left := picture.num_ranks - len(picture.rows):
        parts.append(f"{plural(left, 'more rank')} left out")
    return "; ".join(parts) + (first_told(picture.name, picture.code) if picture.code else "")


def _drawing(picture: CallsPicture) -> str:
    bottom = _ROW * len(picture.rows) + 4
    body = ""
    for tick in ticks(0.0, picture.span, 8):
        x = _x(tick, picture)
        body += line(x, 0, x, bottom) + label(x, bottom + 14, _time(tick, picture.span), anchor="middle")
    body += "".join(_row(row, number * _ROW, picture) for number, row in enumerate(picture.rows))
    num = sum(len(row.calls) for row in picture.rows)
    waiting = sum(bar.waits for row in picture.rows for bar in row.calls)
    said = f"{plural(num, 'call')} of {plural(picture.num_ranks, 'rank')}, {waiting} of them never completed"
    return svg(bottom + 22, said, body)


def _x(time: float, picture: CallsPicture) -> float:
    return scaled(time, 0.0, picture.span, _LEFT, WIDTH - _RIGHT)


def _row(row: CallsRow, y: float, picture: CallsPicture) -> str:
    kind = "ddp-first" if row.concerned else "ddp-strong"
    body = label(_LEFT - 8, y + _CALL_Y + TEXT, f"rank {row.rank}", kind, "end")
    body += line(_LEFT, y + _CALL_Y + _CALL / 2, WIDTH - _RIGHT, y + _CALL_Y + _CALL / 2)
    for bar in row.phases:
        left, right = _ends_of(bar, picture)
        body += box(left, y + _PHASE_Y, max(right - left, 0.5), _PHASE, _KINDS.get(bar.op, "ddp-p0"), title=bar.op)
        if right - left > _LETTER:
            body += label((left + right) / 2, y + _PHASE_Y + 10, bar.op[:1], "ddp-in", "middle")
    alone = len({name.group for name in picture.names}) < 2
    body += "".join(_call(bar, y, picture) for bar in sorted(row.calls, key=lambda bar: bar.first))
    begins = [*(bar.begin for bar in row.calls[1:]), picture.span]
    for bar, following in zip(row.calls, begins, strict=False):
        body += _name(bar, y, picture, _x(following, picture), alone=alone)
    return body + _ending(row, y, picture)


def _ends_of(bar: Bar, picture: CallsPicture) -> tuple[float, float]:
    return _x(bar.begin, picture), _x(bar.end, picture)


def _call(bar: Bar, y: float, picture: CallsPicture) -> str:
    left, right = _ends_of(bar, picture)
    wide = max(right - left, _THIN)
    title = f"{bar.op} number {bar.number} of {bar.group}, step {bar.step}"
    kind = "ddp-open" if bar.waits else "ddp-call"
    body = box(left, y + _CALL_Y, wide, _CALL, kind, title=title)
    if bar.first:
        body += box(left - 1.5, y + _CALL_Y - 1.5, wide + 3, _CALL + 3, "ddp-ring")
        x, anchor = (right, "end") if left > WIDTH * 0.6 else (left, "start")
        body += label(x, y + _CALL_Y + _CALL + TEXT, f"✗ {bar.op} {bar.number}", "ddp-first", anchor)
    if bar.waits or bar.end > picture.span:
        lasted = _time(bar.end - bar.begin, bar.end - bar.begin)
        words = ("… waits " + lasted if bar.end > bar.begin else "… not done") if bar.waits else f"… {lasted}"
        body += label(right + 4, y + _CALL_Y + TEXT, words, "ddp-first" if bar.waits else "")
    return body


def _name(bar: Bar, y: float, picture: CallsPicture, until: float, *, alone: bool) -> str:
    """Return the name of a call in its bar, if there is room for it before the next one begins."""
    left, right = _ends_of(bar, picture)
    words = f"{bar.op} {bar.number}" if alone else f"{bar.group}: {bar.op} {bar.number}"
    if len(words) * _LETTER_WIDTH >= min(right, until) - left:
        return ""
    return label(
        (left + min(right, until)) / 2, y + _CALL_Y + TEXT, words, "ddp-in" if bar.waits else "ddp-on", "middle"
    )


def _ending(row: CallsRow, y: float, picture: CallsPicture) -> str:
    """Say where a process ended, or that a rank which the finding names made no such call."""
    if row.ended is not None:
        x = _x(row.ended, picture)
        return line(x, y + 2, x, y + _ROW - 4, "ddp-cut") + label(
            x + 4,
            y + _CALL_Y + _CALL + TEXT,
            "✗ raised" if row.raised else "■ ended",
            "ddp-first" if row.raised else "",
        )
    called = any(bar.first for other in picture.rows for bar in other.calls)
    if row.concerned and called and not any(bar.first for bar in row.calls):
        return label(WIDTH - _RIGHT, y + _CALL_Y + _CALL + TEXT, "✗ does not call", "ddp-first", "end")
    return ""


def _time(value: float, span: float) -> str:
    if span >= 1_000:
        return f"{value / 1e3:.4g} s"
    return f"{value:.4g} ms" if span >= 1 else f"{value * 1e3:.4g} µs"


def _names(picture: CallsPicture) -> str:
    rows = []
    for each in picture.names:
        mark = '<span class="ddp-bad">✗</span> ' if each.first else ""
        told = "<br>".join(f"{text(who)}: {text(what)}" for who, what in each.told.items())
        rows.append((f"{mark}{text(each.group)} {each.number}", str(each.step) if each.step >= 0 else "", told))
    left = f"; {picture.names_left_out} earlier ones are left out" if picture.names_left_out else ""
    return table(f"What each call asked for, in the order of time{left}", ("call", "step", "what"), rows)


def _ends(picture: CallsPicture) -> str:
    return table("How each rank ended", ("rank", "how"), [(f"rank {row.rank}", text(row.how)) for row in picture.rows])
