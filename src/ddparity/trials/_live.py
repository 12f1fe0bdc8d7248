"""The rings of a command that runs now: is anything moving, and where do its processes stand?"""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ddparity._errors import TraceError
from ddparity.trace._ring_format import FOLDER, LONG, Field, ProcessStatus
from ddparity.trace._rings import Ring, read_head, read_ring

_STALE_SECONDS = 1.5
_ANSWER_SECONDS = 1.5
_MAX_STACKS_BYTES = 4 << 20


@dataclass(frozen=True)
class LiveProcess:
    """One process that has a ring and lives on this host.

    Attributes:
        ring: Its ring as it is now.
        state: What the kernel says of it: ``running``, ``sleeping``, ``stopped``, ``waiting for a disk``.
        answers: Whether its interpreter answers: its watchdog thread gets the GIL.
        stacks: Thread -> frames, innermost first; empty where it did not answer.
    """

    ring: Ring
    state: str
    answers: bool
    stacks: dict[str, list[str]]

    @property
    def quiet_seconds(self) -> float:
        """For how long it has made no call, completed none, and made no progress in its training step."""
        return quiet_seconds(self.ring)


def quiet_seconds(ring: Ring) -> float:
    """Return for how long a process of this host has been quiet."""
    return max(0.0, (time.monotonic_ns() - ring[Field.ACTIVE]) / 1e9)


def any_ring(trial: Path) -> bool:
    """Whether some process of a trial has a ring."""
    return (trial / FOLDER).is_dir()


def rings_of(trial: Path) -> list[Ring]:
    """Return the rings of all ranks of a trial."""
    found = []
    for path in sorted((trial / FOLDER).glob("*.ring")):
        try:
            ring = read_head(path)
        except TraceError:  # being made at this moment
            continue
        if ring.rank >= 0:
            found.append(ring)
    return found


def is_alive(ring: Ring) -> bool:
    """Whether the process of a ring still runs, on this host."""
    return _state(ring[Field.PID]) not in ("", "Z")


def is_stopped(ring: Ring) -> bool:
    """Whether the process of a ring is stopped, and still the one that made the ring."""
    pid = ring[Field.PID]
    return _state(pid) in ("T", "t") and trial_of(pid) == ring.path.parent.parent


def running_rings(trial: Path) -> list[Ring]:
    """Return the rings of the ranks of a trial that live now, on this host."""
    return [r for r in rings_of(trial) if r.status is ProcessStatus.RUNNING and is_alive(r)]


def hangs(trial: Path, seconds: float) -> list[Ring]:
    """Return the rings of a trial if several ranks live and all have been quiet for so long; else an empty list."""
    rings = running_rings(trial)
    together = len(rings) > 1 or any(ring[Field.WORLD_SIZE] > 1 for ring in rings)
    return rings if rings and together and all(quiet_seconds(ring) >= seconds for ring in rings) else []


def ask(trial: Path) -> list[LiveProcess]:
    """Ask every living process of a trial for the stacks of its threads, and wait a moment for the answers."""
    rings = running_rings(trial)
    for ring in rings:
        _write(ring.path, Field.ASKED, time.monotonic_ns())
    deadline = time.monotonic() + _ANSWER_SECONDS
    waiting = {ring.path for ring in rings}
    before = {ring.path: ring[Field.DUMPED] for ring in rings}
    while waiting and time.monotonic() < deadline:
        time.sleep(0.05)
        waiting = {path for path in waiting if read_head(path)[Field.DUMPED] == before[path]}
    return [_seen(ring, answers=ring.path not in waiting) for ring in rings]


def _seen(ring: Ring, *, answers: bool) -> LiveProcess:
    state = {"R": "running", "S": "sleeping", "T": "stopped", "t": "stopped", "D": "waiting for a disk"}
    letter = _state(ring[Field.PID])
    stacks = dict(_stacks(ring.path)) if answers else {}
    return LiveProcess(read_ring(ring.path), state.get(letter, letter), answers, stacks)


def _stacks(path: Path) -> Iterator[tuple[str, list[str]]]:
    file = path.with_suffix(".stacks.json")
    try:
        if file.stat().st_size <= _MAX_STACKS_BYTES:
            document = msgspec.json.decode(file.read_bytes(), type=dict[str, object])
            threads = document.get("threads")
            for name, frames in threads.items() if isinstance(threads, dict) else ():
                yield str(name), [str(frame) for frame in frames] if isinstance(frames, list) else []
    except (OSError, msgspec.MsgspecError, RecursionError):
        return


def _write(path: Path, name: Field, value: int) -> None:
    try:
        with path.open("r+b") as file:
            file.seek(name)
            file.write(LONG.pack(value))
    except OSError:  # it may belong to another user: then it is only looked at
        return


def _state(pid: int) -> str:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return "" if Path("/proc/self").exists() or not _exists(pid) else "R"
    return stat.rpartition(")")[2].split()[0]


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True


def trial_of(pid: int) -> Path | None:
    """Return the folder of the trial that a process is recorded in, by its environment."""
    try:
        entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    for entry in entries:
        name, _, value = entry.partition(b"=")
        if name == b"DDPARITY_CAPTURE":
            try:
                config = msgspec.json.decode(value, type=dict[str, object])
            except msgspec.MsgspecError:
                return None
            folder = config.get("trial_dir")
            return Path(folder) if isinstance(folder, str) else None
    return None
