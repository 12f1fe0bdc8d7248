"""Settling the rows in their order."""

import time
from collections.abc import Callable

from ddparity._errors import DdparityError
from ddparity.preflight import _checkpoints, _drills, _launch, _parameters, _single
from ddparity.preflight._ground import Ground
from ddparity.preflight._rows import (
    DEVIATES,
    INCONCLUSIVE,
    NOT_TESTED,
    PARAMETERS,
    PASS,
    ROWS,
    Review,
    Row,
    RowKind,
    status_of,
)
from ddparity.preflight._spec import PreflightSpec

_SETTLERS: dict[str, Callable[[Ground, Row], None]] = {
    "repeat": _single.repeat,
    "gradients": _single.gradients,
    "learns": _single.learns,
    "control": _single.control,
    "launch": _launch.launch,
    "data": _launch.data,
    "memory": _launch.memory,
    "calls": _launch.calls,
    "ladder": _launch.ladder,
    "exit": _drills.leaves,
    "kill": _drills.killed,
    "stop": _drills.stopped,
    "stall": _drills.stalled,
    "resume": _checkpoints.resume,
    "truncated": _checkpoints.truncated,
    "full-disk": _checkpoints.full_disk,
    "bucket-size": _parameters.bucket_size,
    "bucket-view": _parameters.bucket_view,
    "find-unused": _parameters.find_unused,
    "static-graph": _parameters.static_graph,
    "interface": _parameters.interface,
}


def review(spec: PreflightSpec, say: Callable[[str], None] = lambda _: None) -> Review:
    """Settle every row that is asked for, and those that they stand on.

    Args:
        spec: What to review.
        say: Called with a line of progress before and after each row.

    Raises:
        UsageError: The command cannot be used.
        CommandFailed: It cannot be started.
    """
    started = time.monotonic()
    ground = Ground(spec)
    rows: dict[str, Row] = {}
    try:
        for kind in ROWS:
            if spec.wants(kind):
                _settle(ground, rows, kind, say)
    finally:
        _checkpoints.clear_up(ground)
    shown = [rows[kind.name] for kind in ROWS if kind.name in rows]
    return Review(
        status=status_of(shown),
        nproc=spec.nproc,
        command=spec.target.command,
        rows=shown,
        seconds=round(time.monotonic() - started, 2),
    )


def _settle(ground: Ground, rows: dict[str, Row], kind: RowKind, say: Callable[[str], None]) -> Row:
    if kind.name in rows:
        return rows[kind.name]
    row = Row(name=kind.name, section=kind.section, title=kind.title, status=NOT_TESTED)
    lacking = _lacking(ground, rows, kind, say)
    rows[kind.name] = row
    if lacking:
        row.evidence = lacking
        return row
    say(f"{kind.name}: {kind.title} ...")
    started = time.monotonic()
    try:
        _SETTLERS[kind.name](ground, row)
    except DdparityError as error:
        row.status, row.evidence = INCONCLUSIVE, str(error)
    row.seconds = round(time.monotonic() - started, 2)
    told = f": {row.evidence}" if row.evidence else ""
    say(f"{kind.name}: {row.status.replace('_', ' ')} ({row.seconds:.1f} s){told}")
    return row


def _lacking(ground: Ground, rows: dict[str, Row], kind: RowKind, say: Callable[[str], None]) -> str:
    """Return why a row would mean nothing, or an empty text; the row that it stands on is settled first."""
    if kind.section == PARAMETERS:
        wrong = [
            row.name for row in rows.values() if row.section != PARAMETERS and row.status in (DEVIATES, INCONCLUSIVE)
        ]
        if wrong:
            return f"not before the above passes: {', '.join(wrong)}"
    if not kind.ground:
        return ""
    below = next(each for each in ROWS if each.name == kind.ground)
    base = _settle(ground, rows, below, say)
    if base.status == PASS or (kind.ground == "resume" and ground.saved is not None):
        return ""
    if base.status == NOT_TESTED:
        return base.evidence
    return f"means nothing while {kind.ground} is {base.status.replace('_', ' ')}"
