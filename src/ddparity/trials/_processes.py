"""The processes of one launched command: waiting for them, signalling them, clearing up what they leave.

A command runs in a session of its own. torchrun puts every rank into another session again, so the process group does
not hold them; what does is their environment: each carries the value of ``DDPARITY_CAPTURE`` that was made for this
trial and for no other. Only processes found in one of these two ways are ever signalled.
"""

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

POLL_SECONDS = 0.05
GRACE_SECONDS = 0.5
"""How long processes may take to follow their parent's end by themselves."""
_PROC = Path("/proc")


class Processes:
    """The processes of one command.

    Args:
        leader: The command, started with ``start_new_session``, so that its pid is the id of its group.
        tag: The environment entry, ``NAME=value``, that only this command's processes carry.
    """

    def __init__(self, leader: subprocess.Popen[bytes], tag: str) -> None:
        self._leader = leader
        self._tag = os.fsencode(tag)

    def exit_code(self) -> int | None:
        """Return the command's exit code (negative for a signal), or None while it runs.

        The command is not reaped: until ``reap`` nobody else can be given the id of its group.
        """
        if self._leader.returncode is not None or not hasattr(os, "waitid"):  # macOS before Python 3.13 has none
            return self._leader.poll()
        ending = os.waitid(os.P_PID, self._leader.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ending is None:
            return None
        return ending.si_status if ending.si_code == os.CLD_EXITED else -ending.si_status

    def wait(self, seconds: float) -> bool:
        """Wait up to ``seconds`` for the command to end; return whether it did."""
        deadline = time.monotonic() + seconds
        while self.exit_code() is None:
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(POLL_SECONDS, left))
        return True

    def signal_group(self, number: int) -> None:
        """Send a signal to the command's process group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._leader.pid, number)

    def sweep(self, *, everywhere: bool, seconds: float = 2.0) -> int:
        """End what is left of the command, first politely; return how many processes were left.

        Args:
            everywhere: Also those that left the group, found by their environment. After a command that ended well
                these are left alone: a script may start a server and mean it to stay.
            seconds: How long to wait after SIGTERM, and again after SIGKILL.
        """
        found = self._wait_until_empty(everywhere, GRACE_SECONDS)
        left = found
        for number in (signal.SIGTERM, signal.SIGKILL):
            for pid in left:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, number)
            if left:
                left = self._wait_until_empty(everywhere, seconds)
        return len(found)

    def reap(self) -> int:
        """Return the command's exit code, negative for a signal, after it has ended."""
        return self._leader.wait()

    def _wait_until_empty(self, everywhere: bool, seconds: float) -> list[int]:
        deadline = time.monotonic() + seconds
        while (left := self._left(everywhere)) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        return left

    def _left(self, everywhere: bool) -> list[int]:
        """Return the living processes of the command, without the command itself."""
        mine = (os.getpid(), self._leader.pid)
        if not (_PROC / "self").exists():  # no Linux: the group can be signalled, its members cannot be listed
            self.signal_group(signal.SIGTERM)
            return []
        pids = [int(entry.name) for entry in _PROC.glob("[0-9]*") if int(entry.name) not in mine]
        return [pid for pid in pids if self._is_member(pid) or (everywhere and self._is_tagged(pid))]

    def _is_member(self, pid: int) -> bool:
        state, group = _state_and_group(pid)
        return group == self._leader.pid and state not in "ZX"

    def _is_tagged(self, pid: int) -> bool:
        try:  # empty for a process that has ended, refused for another user's
            return self._tag in (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
        except OSError:
            return False


def _state_and_group(pid: int) -> tuple[str, int]:
    """Return state letter and process group of a process from ``/proc/<pid>/stat`` (proc(5)), or ("X", 0)."""
    try:
        stat = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return "X", 0
    fields = stat.rpartition(")")[2].split()  # the name before it may hold spaces and parentheses
    return (fields[0], int(fields[2])) if len(fields) > 2 else ("X", 0)
