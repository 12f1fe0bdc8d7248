"""The folder of one job: the only thing that supervisor and gateway share.

::

    jobs/<uid>/
      spec.json          what to run; written by the gateway before the supervisor starts
      lock               held by the supervisor for life: a free lock means that it is gone, whatever became of its pid
      supervisor.json    who it is; once this stands here the job is never started again
      progress.json      the phase and the attempt
      cancel             asks the supervisor to end the job
      result.json        how it ended; written last, when no process is left
      logs/<phase>-<attempt>/   agent.log, rank-00000.log, ...
      marks/<phase>-<attempt>/  what each rank wrote when it started and when it ended
      metrics.jsonl      what the script logged with ddparity.log_metric
      checkpoints/       kept from attempt to attempt, for the script to resume from
      work/, gate/       the working directories of the training and of its gate
"""

import contextlib
import fcntl
import os
import time
from collections.abc import Generator
from pathlib import Path
from typing import TypeVar

import msgspec

from ddparity.trace._atomic import write_atomically

from ._spec import Birth, JobSpec, Progress, Result

T = TypeVar("T")
MAX_JSON_BYTES = 4 << 20
RESERVE_BYTES = 64 << 10
_LOCK_PATIENCE = 1.0


def read(path: Path, kind: type[T]) -> T | None:
    """Return what a file holds, or None if it is missing, damaged or absurdly large."""
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            return None
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


class JobFolder:
    """The files of the job in ``root``."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.spec_path = root / "spec.json"
        self.birth_path = root / "supervisor.json"
        self.progress_path = root / "progress.json"
        self.cancel_path = root / "cancel"
        self.result_path = root / "result.json"
        self.metrics_path = root / "metrics.jsonl"
        self.verdict_path = root / "verdict.json"
        self.output_path = root / "supervisor.log"
        self._reserve_path = root / ".reserve"
        self._lock_path = root / "lock"

    def create(self, spec: JobSpec) -> None:
        """Make the folder and write the job's specification; doing it again changes nothing."""
        for name in ("", "logs", "marks", "checkpoints", "work", "gate"):
            (self.root / name).mkdir(mode=0o700, parents=True, exist_ok=True)
        if not self.spec_path.exists():
            write_atomically(self.spec_path, msgspec.json.encode(spec))

    def spec(self) -> JobSpec | None:
        """Return what to run."""
        return read(self.spec_path, JobSpec)

    def birth(self) -> Birth | None:
        """Return which process supervises or supervised the job; None if none ever did."""
        return read(self.birth_path, Birth)

    def was_started(self) -> bool:
        """Return whether a supervisor ever took the job up; it is never started twice."""
        return self.birth_path.exists() or self.result_path.exists()

    def progress(self) -> Progress | None:
        """Return where the job stands."""
        return read(self.progress_path, Progress)

    def result(self) -> Result | None:
        """Return how the job ended, or None: it has not, or its supervisor was lost."""
        return read(self.result_path, Result)

    def logs(self, phase: str, attempt: int) -> Path:
        """Return the folder of the logs of one attempt."""
        return self.root / "logs" / f"{phase}-{attempt}"

    def marks(self, phase: str, attempt: int) -> Path:
        """Return the folder of the marks of one attempt."""
        return self.root / "marks" / f"{phase}-{attempt}"

    def request_cancel(self, why: str) -> None:
        """Ask the supervisor to end the job."""
        write_atomically(self.cancel_path, why.encode())

    def write(self, path: Path, document: msgspec.Struct) -> None:
        """Write a small document so that a reader sees all of it or none."""
        write_atomically(path, msgspec.json.encode(document))

    def reserve(self) -> None:
        """Take room on the disk for the result, so that a full one cannot swallow it."""
        with contextlib.suppress(OSError):
            self._reserve_path.write_bytes(b"\0" * RESERVE_BYTES)

    def finish(self, result: Result) -> None:
        """Write the result, with the room that was reserved; wait for room if there is none all the same."""
        self._reserve_path.unlink(missing_ok=True)
        while True:
            try:
                return self.write(self.result_path, result)
            except OSError:
                time.sleep(1.0)

    def beat(self) -> None:
        """Say that the supervisor is alive to those who cannot see its lock: on other machines."""
        with contextlib.suppress(OSError):
            os.utime(self._lock_path)

    def silence(self) -> float:
        """Return for how many seconds the supervisor has not said that it is alive; infinite if it never did."""
        try:
            return time.time() - self._lock_path.stat().st_mtime
        except OSError:
            return float("inf")

    @contextlib.contextmanager
    def locked(self) -> Generator[bool]:
        """Hold the job's lock inside; yields whether it could be had. The kernel frees it with the process."""
        descriptor = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            yield _take(descriptor)
        finally:
            os.close(descriptor)

    def is_supervised(self) -> bool:
        """Return whether a living supervisor holds the lock."""
        try:
            descriptor = os.open(self._lock_path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            # Shared, and for a moment only: a supervisor that starts just now tries again.
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        else:
            return False
        finally:
            os.close(descriptor)


def _take(descriptor: int) -> bool:
    deadline = time.monotonic() + _LOCK_PATIENCE
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        else:
            return True
