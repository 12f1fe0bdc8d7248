"""The windows of training steps in which tensors are recorded: the value of ``--steps``."""

import re

from ddparity._errors import UsageError

_MAX_STEP = 10**12
_MAX_WINDOWS = 1000
_COUNT = re.compile(r"[0-9]{1,13}")
_WINDOW = re.compile(r"([0-9]{1,13}):([0-9]{1,13})")


def parse_windows(steps: str) -> list[tuple[int, int]]:
    """Return the half-open windows ``[start, stop)`` that ``steps`` describes, sorted and without overlap.

    Args:
        steps: A number of steps, ``"3"`` for ``[(0, 3)]``, or windows, ``"0:3,500:503"``.

    Returns:
        At least one window; windows that overlap or touch are joined.

    Raises:
        UsageError: ``steps`` is neither; the message names the part that cannot be used.
    """
    text = steps.strip()
    if _COUNT.fullmatch(text):
        return [_checked(0, int(text), text, steps)]
    parts = [part.strip() for part in text.split(",")]
    if len(parts) > _MAX_WINDOWS:
        raise UsageError(f"--steps holds {len(parts)} windows; at most {_MAX_WINDOWS} are allowed.")
    windows = []
    for part in parts:
        match = _WINDOW.fullmatch(part)
        if match is None:
            raise _unusable(part, steps, "it is neither a number of steps nor a window START:STOP")
        windows.append(_checked(int(match[1]), int(match[2]), part, steps))
    return _joined(windows)


def _checked(start: int, stop: int, part: str, steps: str) -> tuple[int, int]:
    if stop <= start:
        raise _unusable(part, steps, "it holds no step (the first step is 0, and STOP is not part of the window)")
    if stop > _MAX_STEP:
        raise _unusable(part, steps, f"a step cannot be larger than {_MAX_STEP}")
    return start, stop


def _joined(windows: list[tuple[int, int]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for start, stop in sorted(windows):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], stop))
        else:
            joined.append((start, stop))
    return joined


def _unusable(part: str, steps: str, why: str) -> UsageError:
    return UsageError(
        f"--steps {steps!r} cannot be used: in {part!r}, {why}. "
        "Give a number of steps (--steps 3) or windows (--steps 0:3,500:503)."
    )
