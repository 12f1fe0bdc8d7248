"""Keeping logs within bounds while their writers hold them open, without moving a byte offset.

The oldest part of a log that has grown too long is given back to the disk as a hole: what was written at offset N is
still read at offset N. Where the file system has no holes the log is emptied instead, and a file beside it says which
offset its first byte has.
"""

import os
from pathlib import Path

import msgspec

from ddparity import _linux


class Window(msgspec.Struct, kw_only=True):
    """Which part of a log is there: offsets count from the first byte that was ever written.

    Attributes:
        first: The oldest offset that can be read.
        base: The offset of the file's first byte; 0 unless the file was emptied.
    """

    first: int = 0
    base: int = 0


def window_path(log: Path) -> Path:
    """Return where the window of a log is kept; there is none while all of it is there."""
    return log.with_suffix(".window")


def window_of(log: Path) -> Window:
    """Return which part of a log can be read."""
    try:
        return msgspec.json.decode(window_path(log).read_bytes(), type=Window)
    except (OSError, msgspec.MsgspecError):
        return Window()


def trim(log: Path, limit: int) -> None:
    """Give the oldest part of a log back to the disk if more than ``limit`` bytes of it are kept."""
    window = window_of(log)
    try:
        end = window.base + log.stat().st_size
    except OSError:
        return
    if end - window.first <= limit:
        return
    first = end - limit // 2
    _write(log, Window(first=first, base=window.base))  # readers stay clear of it before it goes
    descriptor = os.open(log, os.O_RDWR)
    try:
        if not _linux.punch_hole(descriptor, first - window.base):
            os.ftruncate(descriptor, 0)  # the writers append, so that they go on at the new end
            _write(log, Window(first=end, base=end))
    finally:
        os.close(descriptor)


def _write(log: Path, window: Window) -> None:
    path = window_path(log)
    temporary = path.with_suffix(".window.tmp")
    temporary.write_bytes(msgspec.json.encode(window))
    temporary.replace(path)
