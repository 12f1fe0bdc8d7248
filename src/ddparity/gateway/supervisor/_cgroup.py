"""A cgroup (version 2) of one job, where the machine permits it: its processes cannot leave, and one write ends them.

Where cgroupfs is read-only (most containers) or belongs to somebody else, there is none, and the walk through /proc
does the work.
"""

import contextlib
import os
import time
from pathlib import Path
from typing import Self


class Cgroup:
    """The cgroup at ``path``."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, name: str) -> Self | None:
        """Make a cgroup below this process's own, or return None where that is not permitted."""
        base = _own()
        if base is None:
            return None
        path = base / name
        try:
            path.mkdir(exist_ok=True)
            if not os.access(path / "cgroup.procs", os.W_OK) or not (path / "cgroup.kill").exists():
                path.rmdir()
                return None
        except OSError:
            return None
        return cls(path)

    def enter(self) -> None:
        """Move this process into it; its children are born there."""
        with contextlib.suppress(OSError):
            (self.path / "cgroup.procs").write_text(str(os.getpid()))

    def pids(self) -> set[int]:
        """Return the processes in it and below it; those that wait to be reaped count too."""
        found: set[int] = set()
        with contextlib.suppress(OSError):
            for file in [self.path / "cgroup.procs", *self.path.glob("**/*/cgroup.procs")]:
                with contextlib.suppress(OSError):
                    found.update(int(line) for line in file.read_text().split())
        return found

    def kill(self) -> None:
        """End every process in it at once; none can fork its way out."""
        with contextlib.suppress(OSError):
            (self.path / "cgroup.kill").write_text("1")

    def remove(self) -> None:
        """Remove it; the kernel may take a moment after the last process was reaped."""
        for _ in range(20):
            try:
                for below in sorted(self.path.glob("**/*/"), reverse=True):
                    below.rmdir()
                self.path.rmdir()
            except FileNotFoundError:
                return
            except OSError:
                time.sleep(0.01)
            else:
                return


def _own() -> Path | None:
    """Return the folder of this process's own cgroup, or None where there is no version 2."""
    mount = _mount()
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    own = next((line[3:] for line in lines if line.startswith("0::")), None)
    if mount is None or own is None or "/.." in own:  # a cgroup outside of this namespace cannot be reached
        return None
    path = mount / own.lstrip("/")
    return path if path.is_dir() else None


def _mount() -> Path | None:
    try:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        place, _, kind = line.partition(" - ")
        if kind.startswith("cgroup2 "):
            return Path(place.split()[4])
    return None
