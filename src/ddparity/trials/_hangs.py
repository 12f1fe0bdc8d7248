"""Watching a recorded command from outside: does it hang, and is a stopped process keeping its launcher waiting?"""

import contextlib
import os
import signal
import sys
import time
from pathlib import Path

from ddparity.trace._ring_format import Field, ProcessStatus
from ddparity.trials._live import any_ring, hangs, is_alive, is_stopped, quiet_seconds, rings_of
from ddparity.trials._spec import RecordSpec

LOOK_SECONDS = 1.0
_GRACE_SECONDS = 3.0
"""How long after the death of a rank a stopped one may keep the others' launcher waiting."""


class HangWatch:
    """Looks at the rings of a trial while its command runs.

    Attributes:
        notes: What is to be noted in the trial's facts.
    """

    def __init__(self, spec: RecordSpec, folder: Path) -> None:
        self.notes: list[str] = []
        self._spec = spec
        self._folder = folder
        self._said = False
        self._woken: set[int] = set()
        self._died: float | None = None

    def look(self) -> bool:
        """Look once; return whether the command hangs and is to be ended for it."""
        if not any_ring(self._folder):
            return False
        with contextlib.suppress(OSError):
            self._wake_stopped()
        found = hangs(self._folder, self._spec.hang_after_s)
        if not found:
            self._said = False
            return False
        if not self._said:
            self._said = True
            quiet = min(quiet_seconds(ring) for ring in found)
            self._say(f"the run hangs: no rank has made a call or a step for {quiet:.0f} s")
        if self._spec.on_hang == "stop":
            self.notes.append(f"the command hung for {self._spec.hang_after_s:g} s and was ended (--on-hang stop)")
            return True
        return False

    def _wake_stopped(self) -> None:
        """Let a stopped process get the signal by which its launcher ends it, after another rank has died.

        torchrun sends SIGTERM to the other ranks and waits half a minute for one that is stopped and cannot react.
        """
        rings = rings_of(self._folder)
        if self._died is None and any(ring.status is ProcessStatus.RAISED and not is_alive(ring) for ring in rings):
            self._died = time.monotonic()
        if self._died is None or time.monotonic() - self._died < _GRACE_SECONDS:
            return
        for ring in rings:
            pid = ring[Field.PID]
            if ring.status is ProcessStatus.RUNNING and pid not in self._woken and is_stopped(ring):
                self._woken.add(pid)
                os.kill(pid, signal.SIGCONT)
                self.notes.append(
                    f"rank {ring.rank} (pid {pid}) was stopped when another rank died; it was woken to end"
                )

    def _say(self, text: str) -> None:
        self.notes.append(text)
        if not self._spec.quiet:
            print(f"ddparity: {text}. Look at it: ddparity hang {self._folder.name}", file=sys.stderr, flush=True)
