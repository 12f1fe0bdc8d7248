"""What is asked of Linux beyond the standard library: signals at a parent's death, adoption, holes in files.

Sources: prctl(2), fallocate(2), proc(5).
"""

import ctypes
import os
import sys
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_FALLOC_KEEP_SIZE_AND_PUNCH_HOLE = 0x01 | 0x02
_PROC = Path("/proc")


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def die_with_parent(number: int, parent: int | None = None) -> None:
    """Have the kernel send this process a signal when the *thread* that started it ends.

    Elsewhere than on Linux nothing happens. Only a single-threaded parent may rely on it: in a pool of threads the
    signal comes with the end of the worker.

    Args:
        number: The signal.
        parent: The parent's pid; where it has ended before this was asked for, the signal comes at once.
    """
    if sys.platform == "linux":
        _libc().prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
        if parent is not None and os.getppid() != parent:
            os.kill(os.getpid(), number)


def adopt_orphans() -> None:
    """Make this process the parent of every descendant whose own parent ends."""
    _libc().prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def punch_hole(descriptor: int, length: int) -> bool:
    """Give the first ``length`` bytes of a file back to the disk; offsets and size stay. False if it cannot be done."""
    fallocate = getattr(_libc(), "fallocate", None)
    if fallocate is None:
        return False
    fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    return fallocate(descriptor, _FALLOC_KEEP_SIZE_AND_PUNCH_HOLE, 0, length) == 0


def boot_id() -> str:
    """Return what tells this boot of the machine from any other; empty where the kernel does not say."""
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def pids() -> list[int]:
    """Return the ids of all processes that can be seen."""
    return [int(name) for name in os.listdir(_PROC) if name.isdigit()]


def stat(pid: int) -> list[str]:
    """Return the fields of ``/proc/PID/stat`` from the third on (state, parent, group, ...); empty if it is gone."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()  # the name before it may hold spaces and parentheses


def alive(pid: int) -> bool:
    """Return whether a process runs; one that only waits to be reaped does not, whatever ``kill(pid, 0)`` says."""
    fields = stat(pid)
    return bool(fields) and fields[0] not in "ZX"


def parent(pid: int) -> int:
    """Return the id of a process's parent, 0 if it is gone."""
    fields = stat(pid)
    return int(fields[1]) if fields else 0


def start_time(pid: int) -> int:
    """Return when a process started, in clock ticks since boot; with its id this names it for good. 0 if gone."""
    fields = stat(pid)
    return int(fields[19]) if len(fields) > 19 else 0


def exit_status(pid: int) -> int | None:
    """Return the wait status of a process that waits to be reaped, or None: it runs, is gone, or may not be asked."""
    fields = stat(pid)
    return int(fields[49]) if len(fields) > 49 and fields[0] == "Z" else None


def carries(pid: int, entry: bytes) -> bool:
    """Return whether ``entry`` (``NAME=value``) stands in the environment that a process was started with."""
    try:  # empty for a process that has ended, refused for another user's
        return entry in (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return False
