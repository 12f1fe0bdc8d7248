"""``log_metric``: for the recorder, and for the file that the gateway asks a job's script to write.

One JSON object a line. Only rank 0 writes; a fault here is never the script's.
"""

import contextlib
import json
import math
import os
import time

from ._api import current_session

METRICS_VARIABLE = "DDPARITY_METRICS"
"""Environment variable that names the file."""
MAX_BYTES = 64 << 20
"""The file grows no further than this: a script that logs in its innermost loop fills no disk."""
_MAX_NAME = 200


def log_metric(name: str, value: float, step: int | None = None) -> float:
    """Record a number, such as an accuracy, as ``metric:NAME``; return it unchanged.

    In a job of the gateway it becomes one of the job's metrics too, whether anything records or not.

    Args:
        name: What the number is called.
        value: The number.
        step: Which step, epoch or sample it belongs to, where the script counts them.
    """
    note_metric(name, value, step)
    return value


def note_metric(name: str, value: float, step: int | None = None, *, compared: bool = True) -> None:
    """Take a number; ``compared``: whether it may be the result of an evaluation, to be held against the control's."""
    if path := os.environ.get(METRICS_VARIABLE):
        _append(path, name, value, step)
    session = current_session()
    if session is not None:
        session.metric(name, value, step, compared=compared)


def _append(path: str, name: str, value: float, step: int | None) -> None:
    """Append one number; what cannot be written, or is no number, is left out."""
    if os.environ.get("RANK", "0") != "0":
        return
    with contextlib.suppress(Exception):
        number = float(value)
        written = number if math.isfinite(number) else str(number)  # JSON has no NaN
        entry = {"name": name[:_MAX_NAME], "value": written, "step": step, "time": round(time.time(), 3)}
        line = (json.dumps(entry) + "\n").encode()
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            if os.fstat(descriptor).st_size < MAX_BYTES:
                os.write(descriptor, line)
        finally:
            os.close(descriptor)
