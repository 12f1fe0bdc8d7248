"""The ladders of a store: what each climb came to, in ``ladders/<name>.json``, written anew after every rung.

A climb that is killed at any moment leaves the truth: the file says which rungs are done and which one ran, and a lock
that is held for the life of the climb says whether anybody is climbing still.
"""

import contextlib
import fcntl
import os
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import msgspec

from ddparity._errors import TraceError, UsageError
from ddparity.trace._atomic import write_atomically
from ddparity.trials._store import Store, check_name

PASS, DEVIATES, INCONCLUSIVE, FAILED = "PASS", "DEVIATES", "INCONCLUSIVE", "FAILED"
INTERRUPTED, SKIPPED, NOT_REACHED, RUNNING = "INTERRUPTED", "SKIPPED", "NOT_REACHED", "RUNNING"
_KILLED = "the climb was killed while this rung ran"
_MAX_BYTES = 16 << 20
_TRIES, _TRY_SECONDS = 20, 0.05


class RungResult(msgspec.Struct, kw_only=True):
    """What became of one rung.

    Attributes:
        number: 0 to 7.
        label: The same as the documentation has it; rung 2b has a number of 2.
        status: PASS, DEVIATES, INCONCLUSIVE, FAILED (the command), INTERRUPTED, SKIPPED, NOT_REACHED or, while the
            climb is under way, RUNNING.
        reason: Why, in words.
        trial: Id of its trial.
        reused: Whether the trial was in the store already.
        variable: What changed against the rung below, for example ``world_size``.
        change: The same with its values: ``world_size 1 -> 2``.
        finding: The first deviation, as in ``compare --json``.
    """

    number: int
    label: str = ""
    title: str
    status: str
    reason: str = ""
    nproc: int = 1
    accum: int = 1
    dtype: str = ""
    command: list[str] = []
    trial: str | None = None
    reused: bool = False
    seconds: float = 0.0
    variable: str | None = None
    change: str = ""
    finding: dict[str, Any] | None = None


class LadderResult(msgspec.Struct, kw_only=True):
    """The answer of ``ddparity ladder``, and the file ``ladders/<name>.json`` of a store.

    Attributes:
        name: What the names of its trials begin with.
        status: PASS, DEVIATES, INCONCLUSIVE, FAILED, INTERRUPTED or, while the climb is under way, RUNNING.
        meaning: What a deviation at that rung means.
        control: Id of the control of rung 0.
        rungs: Every rung, those that were skipped or not reached included.
        next: The command to run then.
        again: The command that climbs once more; it goes on where the store has the trials already.
        cwd: The folder in which it was climbed.
        started: When the climb began, in seconds since the epoch.
        updated: When the last rung began or ended.
    """

    schema: int = 1
    name: str = ""
    status: str
    stopped_at: int | None = None
    """Number of the rung at which the climb ended early."""
    variable: str | None = None
    """What changed at that rung."""
    meaning: str = ""
    control: str | None = None
    rungs: list[RungResult]
    next: str = ""
    again: str = ""
    cwd: str = ""
    started: float = 0.0
    updated: float = 0.0


class Ladders:
    """The ladders of one store.

    Args:
        store: The store; a folder that is not there is not made by reading.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self.folder = store.root / "ladders"

    def names(self) -> list[str]:
        """Return the names of all ladders, the one that was written last first."""
        found: list[tuple[int, str]] = []
        with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(self.folder) as entries:
            for entry in entries:
                name = entry.name.removesuffix(".json")
                if name != entry.name and _is_name(name) and entry.is_file(follow_symlinks=False):
                    found.append((entry.stat(follow_symlinks=False).st_mtime_ns, name))
        return [name for _, name in sorted(found, reverse=True)]

    def read(self, name: str) -> LadderResult:
        """Return what a climb came to, or has come to so far; one that was killed is INTERRUPTED.

        Raises:
            UsageError: There is none of that name.
            TraceError: Its file is damaged.
        """
        path = self._path(name)
        running = self._is_held(name)  # looked at first: a climb that ends in between has written its end by then
        try:
            with path.open("rb") as file:
                data = file.read(_MAX_BYTES + 1)
        except OSError:
            raise self._missing(name) from None
        if len(data) > _MAX_BYTES:
            raise TraceError(f"{path} is larger than {_MAX_BYTES} bytes: it was not written by ddparity.")
        try:
            result = msgspec.json.decode(data, type=LadderResult)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise TraceError(f"{path} is damaged ({error}). Climb again: ddparity ladder --name {name}") from error
        result.name = name
        return result if running or result.status != RUNNING else _killed(result)

    def write(self, result: LadderResult) -> None:
        """Keep what a climb has come to so far.

        Raises:
            OSError: The store cannot be written.
        """
        result.updated = time.time()
        write_atomically(self._path(result.name), msgspec.json.format(msgspec.json.encode(result), indent=2))

    @contextlib.contextmanager
    def climbing(self, name: str) -> Generator[None]:
        """Hold the name for a climb.

        Raises:
            UsageError: It is being climbed already, or the store cannot be written.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = os.open(self._lock(name), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise UsageError(
                f"The store {str(self._store.root)!r} cannot be written ({error.strerror}). Name another with --store."
            ) from error
        try:
            if not _locked(lock):
                raise UsageError(
                    f"The ladder {name!r} of this store is being climbed. Wait for it (ddparity ladders {name}), or "
                    "give this one a name of its own with --name."
                )
            yield
        finally:
            os.close(lock)

    def _path(self, name: str) -> Path:
        if not _is_name(name):
            raise self._missing(name)
        return self.folder / f"{name}.json"

    def _lock(self, name: str) -> Path:
        return self.folder / f"{name}.lock"

    def _is_held(self, name: str) -> bool:
        try:
            lock = os.open(self._lock(name), os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(lock)
        return False

    def _missing(self, name: str) -> UsageError:
        names = self.names()
        there = f"There are: {', '.join(names[:5])}." if names else "It holds none; climb one: ddparity ladder --help"
        return UsageError(f"No ladder {name[:80]!r} in the store {str(self._store.root)!r}. {there}")


def _is_name(name: str) -> bool:
    try:
        return check_name(name) == name
    except UsageError:
        return False


def _locked(lock: int) -> bool:
    """Take the lock; somebody who only looks holds it for a moment, so that one refusal says nothing."""
    for _ in range(_TRIES):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_TRY_SECONDS)
        except OSError:  # a file system without locks: go on without
            return True
        else:
            return True
    return False


def _killed(result: LadderResult) -> LadderResult:
    """Return a climb that nobody is on any more as what it is."""
    result.status, result.next = INTERRUPTED, result.again
    for rung in result.rungs:
        if rung.status == RUNNING:
            rung.status, rung.reason = INTERRUPTED, _KILLED
            result.stopped_at, result.variable = rung.number, None
    return result
