"""How much memory this process holds now: the device's allocator, else the C library's own count, else the pages.

The C library counts what was asked of it and not given back (``mallinfo2``, 5 microseconds): CPU tensors of any size
come from there, so a single tensor more is seen as what it is. The resident pages of the process (RSS) are no such
count: they stay after a free. They are read beside it.
"""

import contextlib
import ctypes
import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

_PAGE = os.sysconf("SC_PAGE_SIZE")
_PROBE_BYTES = 4 << 20
_MAX_CAPACITY = 1 << 50
_CGROUP = "/sys/fs/cgroup"


class _Mallinfo2(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks")
    ] + [("fordblks", ctypes.c_size_t), ("keepcost", ctypes.c_size_t)]


class Reader:
    """Reads the memory of this process; ``source`` says what ``held`` counts."""

    def __init__(self) -> None:
        self._malloc = _malloc_count()
        self._cuda = False

    @property
    def source(self) -> str:
        """What ``held`` counts: ``cuda``, ``malloc`` or ``rss``."""
        if self._cuda or (torch.cuda.is_available() and torch.cuda.is_initialized()):
            self._cuda = True
            return "cuda"
        return "rss" if self._malloc is None else "malloc"

    def held(self) -> int:
        """Return the bytes that are allocated now."""
        source = self.source
        if source == "cuda":
            return torch.cuda.memory_allocated()
        return rss() if self._malloc is None else self._malloc()

    def device_statistics(self) -> dict[str, int]:
        """Return what only a device's allocator counts: reserved bytes, and the peak since the run began."""
        if self.source != "cuda":
            return {}
        return {
            "reserved": torch.cuda.memory_reserved(),
            "peak_allocated": torch.cuda.max_memory_allocated(),
            "host": rss(),
        }

    def capacity(self) -> dict[str, Any]:
        """Return how much there is for this process, and who says so."""
        if self.source == "cuda":
            return {"bytes": torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory, "by": "device"}
        limits = {
            "RLIMIT_AS": resource.getrlimit(resource.RLIMIT_AS)[0],
            "RLIMIT_DATA": resource.getrlimit(resource.RLIMIT_DATA)[0],
            "cgroup": _number(Path(_CGROUP) / "memory.max"),
            "machine": os.sysconf("SC_PHYS_PAGES") * _PAGE,
        }
        known = {by: limit for by, limit in limits.items() if 0 < limit < _MAX_CAPACITY}
        by = min(known, key=lambda each: known[each])
        return {"bytes": known[by], "by": by}


def rss() -> int:
    """Return the bytes of this process that are in memory."""
    with contextlib.suppress(OSError, IndexError, ValueError), open("/proc/self/statm", "rb", buffering=0) as file:
        return int(file.read(256).split()[1]) * _PAGE
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # not Linux: the peak is all there is


def _malloc_count() -> Callable[[], int] | None:
    """Return the C library's count of allocated bytes, if it has one and torch's tensors are in it."""
    try:
        function = ctypes.CDLL(None).mallinfo2
    except (OSError, AttributeError):
        return None
    function.restype = _Mallinfo2

    def count() -> int:
        info = function()
        return info.uordblks + info.hblkhd

    before = count()
    probe = torch.empty(_PROBE_BYTES, dtype=torch.uint8, device="cpu")  # another allocator may have been preloaded
    seen = count() - before
    del probe
    return count if seen >= _PROBE_BYTES // 2 else None


def _number(path: Path) -> int:
    with contextlib.suppress(OSError, ValueError):
        return int(path.read_text())
    return -1
