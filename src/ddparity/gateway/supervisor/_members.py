"""The processes of one job: who they are, and ending all of them until none is left.

A process belongs to the job if it stands in the job's cgroup, descends from the supervisor (which adopts orphans), or
was started with the job's tag in its environment. Nothing else is ever signalled. Each is held by a pidfd while that
is looked up again, so that a number that was given to somebody else meanwhile hits nobody.
"""

import contextlib
import os
import signal
import time

from ddparity import _linux

from ._cgroup import Cgroup

TAG_VARIABLE = "DDPARITY_JOB"


class Members:
    """The processes of a job.

    Args:
        tag: The environment entry, ``NAME=value``, that only this job's processes carry.
        cgroup: The job's cgroup, where there is one.
        root: The supervisor, whose descendants they are; None where it is gone.
    """

    def __init__(self, tag: str, cgroup: Cgroup | None = None, root: int | None = None) -> None:
        self._tag = os.fsencode(tag)
        self._cgroup = cgroup
        self._root = root
        self._spared = {os.getpid()} if root is None else {os.getpid(), root}

    def living(self) -> set[int]:
        """Return the ids of the job's processes that run."""
        inside = self._cgroup.pids() if self._cgroup is not None else set[int]()
        everyone = _linux.pids()
        below = self._descendants(everyone)
        return {
            pid
            for pid in {*everyone, *inside} - self._spared
            if (pid in inside or pid in below or _linux.carries(pid, self._tag)) and _linux.alive(pid)
        }

    def clear(self, *, but: int | None = None) -> set[int]:
        """End every process of the job; return, when none is left, which had to be killed.

        A process in the kernel's uninterruptible sleep ends when the kernel lets go of it: this waits for that.

        Args:
            but: A child that somebody else will collect.
        """
        killed: set[int] = set()
        quiet, pause = 0, 0.005
        while quiet < 2:  # twice, because a process may be forked while the list is read
            found = self._kill_living()
            killed |= found
            self.reap(but=but)
            quiet = 0 if found else quiet + 1
            time.sleep(pause)
            pause = min(pause * 1.5, 0.5)
        return killed

    def kill(self) -> bool:
        """Send every process of the job SIGKILL, once; return whether there was none left to send it to."""
        return not self._kill_living() and not self._kill_living()

    def _kill_living(self) -> set[int]:
        found = self.living()
        if found and self._cgroup is not None:
            self._cgroup.kill()
        for pid in found:
            self._kill(pid)
        return found

    def reap(self, *, but: int | None = None) -> None:
        """Collect the adopted children that have ended; ``but`` is left for the one that waits for it."""
        if self._root != os.getpid():
            return
        with contextlib.suppress(ChildProcessError):  # there are none
            while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
                if ended.si_pid == but:
                    return
                os.waitpid(ended.si_pid, os.WNOHANG)

    def _kill(self, pid: int) -> None:
        try:
            held = os.pidfd_open(pid)
        except OSError:
            return
        try:
            if self._is_member(pid):
                signal.pidfd_send_signal(held, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass
        finally:
            os.close(held)

    def _is_member(self, pid: int) -> bool:
        if _linux.carries(pid, self._tag) or (self._cgroup is not None and pid in self._cgroup.pids()):
            return True
        seen = pid
        while self._root is not None and seen > 1:
            seen = _linux.parent(seen)
            if seen == self._root:
                return True
        return False

    def _descendants(self, everyone: list[int]) -> set[int]:
        if self._root is None:
            return set()
        children: dict[int, list[int]] = {}
        for pid in everyone:
            children.setdefault(_linux.parent(pid), []).append(pid)
        found: set[int] = set()
        todo = [self._root]
        while todo:
            below = children.pop(todo.pop(), [])
            found.update(below)
            todo += below
        return found
