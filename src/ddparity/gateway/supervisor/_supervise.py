"""A job from its first command to its result."""

import contextlib
import os
import signal
import time
import traceback

from ddparity import _linux

from ._attempt import Running
from ._cgroup import Cgroup
from ._folder import JobFolder
from ._members import TAG_VARIABLE, Members
from ._spec import Attempt, Birth, JobSpec, Phase, Progress, Result

TAKEN, REFUSED, NOT_A_JOB = 75, 76, 2
_BEAT_SECONDS = 2.0


def supervise(folder: JobFolder) -> int:
    """Run the job in ``folder``, once; return the exit code of the supervisor.

    A job that another supervisor holds, or once held, is left alone: it never runs twice.
    """
    spec = folder.spec()
    if spec is None:
        return NOT_A_JOB
    with folder.locked() as mine:
        if not mine:
            return TAKEN
        if folder.was_started():
            return REFUSED
        _linux.adopt_orphans()
        cgroup = None if spec.isolation == "walk" else Cgroup.create(f"ddparity-{spec.uid}")
        _tell_birth(folder, cgroup)
        folder.reserve()
        folder.finish(_run(folder, spec, cgroup))
        if cgroup is not None:
            cgroup.remove()
    return 0


def _run(folder: JobFolder, spec: JobSpec, cgroup: Cgroup | None) -> Result:
    """Run the job; a fault of the supervisor is the job's failure, told when nothing of it is left."""
    started = time.time()
    try:
        return Supervision(folder, spec, cgroup).run()
    except Exception as error:
        traceback.print_exc()
        Members(f"{TAG_VARIABLE}={spec.uid}", cgroup, os.getpid()).clear()
        text = f"the supervisor failed: {type(error).__name__}: {error}"
        return Result(state="FAILED", exit_code=None, started=started, ended=time.time(), error=text)


def _tell_birth(folder: JobFolder, cgroup: Cgroup | None) -> None:
    pid = os.getpid()
    path = None if cgroup is None else str(cgroup.path)
    birth = Birth(pid=pid, start=_linux.start_time(pid), boot_id=_linux.boot_id(), time=time.time(), cgroup=path)
    folder.write(folder.birth_path, birth)


class Supervision:
    """The course of one job."""

    def __init__(self, folder: JobFolder, spec: JobSpec, cgroup: Cgroup | None) -> None:
        self._folder = folder
        self._spec = spec
        self._cgroup = cgroup
        self._members = Members(f"{TAG_VARIABLE}={spec.uid}", cgroup, os.getpid())
        self._signal: int | None = None
        self._beaten = 0.0
        self._deadline = None if spec.timeout_s is None else time.monotonic() + spec.timeout_s
        self._result = Result(state="FAILED", exit_code=None, started=time.time(), ended=0.0)

    def run(self) -> Result:
        """Run phase after phase until one of them ends the job."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._take_signal)
        result = self._result
        result.state = "COMPLETED"
        for phase in self._spec.phases:
            if not self._run_phase(phase):
                break
        self._members.clear()
        result.ended = time.time()
        return result

    def _take_signal(self, number: int, _frame: object) -> None:
        self._signal = number

    def _stop(self) -> str | None:
        if time.monotonic() - self._beaten > _BEAT_SECONDS:
            self._beaten = time.monotonic()
            self._folder.beat()
        if self._folder.cancel_path.exists() or self._signal is not None:
            return "cancel"
        if self._deadline is not None and time.monotonic() > self._deadline:
            return "timeout"
        return None

    def _run_phase(self, phase: Phase) -> bool:
        """Run one phase, as often as it may be tried; return whether the job goes on."""
        for number in range(phase.attempts):
            if reason := self._stop():
                self._ended(phase, _not_made(phase, number, reason), None)
                return False
            with contextlib.suppress(OSError):
                self._folder.write(
                    self._folder.progress_path, Progress(phase=phase.name, attempt=number, since=time.time())
                )
            running = Running(self._folder, self._spec, phase, number, self._members, self._cgroup)
            attempt = running.run(self._stop)
            self._result.attempts.append(attempt)
            self._result.swept += attempt.swept
            if self._ended(phase, attempt, running):
                return True
            if attempt.ended_by in ("cancel", "timeout", "start"):
                return False
        return phase.optional

    def _ended(self, phase: Phase, attempt: Attempt, running: Running | None) -> bool:
        """Enter what became of an attempt; return whether the job goes on to the next phase.

        What the command itself said goes first: a cancel that comes after the work was done changes nothing.
        """
        result = self._result
        code = attempt.exit_code
        word = phase.passes.get(code) if code is not None and attempt.ended_by != "rank" else None
        if word is None and running is not None and running.ranks.aborted_at_exit():
            word = "PASS"
            result.notes.append(f"the interpreter ended with exit code {code} after every rank had finished its work")
        if word is None and phase.optional:  # the work is done; that it could not be judged changes nothing about it
            word = "INCONCLUSIVE"
            why = f"exit code {code}" if attempt.ended_by == "itself" else attempt.ended_by
            result.notes.append(f"{phase.name} could not be made: {why}")
        result.phases[phase.name] = word or "FAIL"
        if word is not None:
            result.exit_code = code if phase.name != "verdict" else result.exit_code
            result.state, result.error = "COMPLETED", None
            return True
        result.exit_code = code
        result.state = "CANCELLED" if attempt.ended_by == "cancel" else "FAILED"
        result.error = self._error(phase, attempt)
        return False

    def _error(self, phase: Phase, attempt: Attempt) -> str:
        if attempt.ended_by == "cancel":
            return f"stopped by {signal.Signals(self._signal).name}" if self._signal else self._why_cancelled()
        where = "" if phase.name == "train" else f"{phase.name}: "
        if attempt.ended_by == "timeout":
            return f"{where}the job ran longer than timeout_s {self._spec.timeout_s:g}"
        told = attempt.error or f"the command ended with exit code {attempt.exit_code}"
        if phase.name == "gate":
            told = told.replace("rank 0 ", "the single-device path ", 1)
        if attempt.number:
            told += f" (attempt {attempt.number + 1} of {phase.attempts})"
        return f"{where}{told}"

    def _why_cancelled(self) -> str:
        with contextlib.suppress(OSError):
            return self._folder.cancel_path.read_text(errors="replace")[:500] or "cancelled"
        return "cancelled"


def _not_made(phase: Phase, number: int, reason: str) -> Attempt:
    """Return an attempt that was never made."""
    now = time.time()
    return Attempt(
        phase=phase.name, number=number, started=now, ended=now, exit_code=None, ended_by=reason, swept=0, finished=0
    )
