"""Writing the ring of this process: a memory-mapped file that stays readable whatever ends the process."""

import itertools
import mmap
import os
import socket
import threading
import time
from pathlib import Path

from ddparity.trace._ring_format import (
    ARRIVAL_SIZE,
    ARRIVALS_AT,
    ARRIVALS_SIZE,
    FLAGS_OFFSET,
    FOLDER,
    HEAD,
    LONG,
    MAGIC,
    PAIR,
    POSITION_AT,
    POSITION_SIZE,
    RECORD,
    RECORD_SIZE,
    RECORDS_AT,
    RING,
    SHORT,
    SIZE,
    STRINGS_AT,
    STRINGS_SIZE,
    VERSION,
    Field,
    Kind,
    ProcessStatus,
)

_MAX_TEXT = 60_000
_COUNT_AT = int(Field.NUM_RECORDS)
assert int(Field.ACTIVE) == _COUNT_AT + 8
_TOO_MANY = 0
MAX_PARAMETERS = ARRIVALS_SIZE // ARRIVAL_SIZE


class Ring:
    """The ring of this process.

    Attributes:
        memory: The mapping; what must be quick writes into it itself.
        words: The same, as signed numbers of 8 bytes.
        serials: Counts the records.
    """

    def __init__(self, trial: Path, *, rank: int, world_size: int) -> None:
        folder = trial / FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        self.pid = os.getpid()
        self.path = folder / f"{self.pid}-{time.time_ns():x}.ring"
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            _reserve(descriptor)
            self.memory = mmap.mmap(descriptor, SIZE)
        except OSError:
            self.path.unlink(missing_ok=True)
            raise
        finally:
            os.close(descriptor)
        self.words = memoryview(self.memory).cast("q")
        self.serials = itertools.count(1)
        self._lock = threading.Lock()
        self._strings: dict[str, int] = {"": 0}
        self._string_bytes = 0
        now = time.monotonic_ns()
        fields = {
            Field.VERSION: VERSION,
            Field.PID: self.pid,
            Field.RANK: rank,
            Field.WORLD_SIZE: world_size,
            Field.STARTED_WALL: time.time_ns(),
            Field.STARTED: now,
            Field.HEARTBEAT: now,
            Field.ACTIVE: now,
            Field.STEP: -1,
            Field.RESTART: _restart(),
        }
        for name, value in fields.items():
            self.set(name, value)
        self.set(Field.HOST, self.string(socket.gethostname()))
        self.memory[:8] = MAGIC  # last, so that what has it is whole

    def set(self, name: Field, value: int) -> None:
        """Set a field of the header."""
        LONG.pack_into(self.memory, name, value)

    def get(self, name: Field) -> int:
        """Return a field of the header."""
        return int(LONG.unpack_from(self.memory, name)[0])

    def string(self, text: str) -> int:
        """Return the number of a string; 0, the empty one, when there is no more room."""
        number = self._strings.get(text)
        if number is not None:
            return number
        data = text.encode(errors="replace")[:_MAX_TEXT]
        with self._lock:
            if self._string_bytes + 4 + len(data) > STRINGS_SIZE:
                return _TOO_MANY
            at = STRINGS_AT + self._string_bytes
            self.memory[at : at + 4] = len(data).to_bytes(4, "little")
            self.memory[at + 4 : at + 4 + len(data)] = data
            self._string_bytes += 4 + len(data)
            self.set(Field.STRING_BYTES, self._string_bytes)
            number = self._strings[text] = len(self._strings)
        return number

    def call(self, *values: int) -> int:
        """Write one record, without its serial and its last three times; return where it stands."""
        serial = next(self.serials)
        slot = serial if serial < HEAD else HEAD + (serial - HEAD) % RING
        at = RECORDS_AT + slot * RECORD_SIZE
        memory = self.memory
        RECORD.pack_into(memory, at, 0, values[0], 0, 0, 0, *values[1:], 0)
        LONG.pack_into(memory, at, serial)
        PAIR.pack_into(memory, _COUNT_AT, serial, values[0])
        return at

    def serial(self, at: int) -> int:
        """Return the serial number of the record that stands somewhere now."""
        return int(LONG.unpack_from(self.memory, at)[0])

    def stamp(self, at: int, offset: int, now: int) -> None:
        """Enter one of the times of a record."""
        LONG.pack_into(self.memory, at + offset, now)

    def flag(self, at: int, flags: int) -> None:
        """Add flags to a record."""
        (old,) = SHORT.unpack_from(self.memory, at + FLAGS_OFFSET)
        SHORT.pack_into(self.memory, at + FLAGS_OFFSET, old | flags)

    def note(self, kind: Kind, name: str, *, step: int = -1, seq: int = 0, begun: int | None = None) -> int:
        """Write a record that is no call: a mark of the training step, or a note."""
        now = time.monotonic_ns()
        begin = now if begun is None else begun
        at = self.call(begin, kind, 0, 0, seq, 0, step, 0, 0, 0, -1, 0, 0, 0, 0, 0, self.string(name), 0, 0, 0, 0)
        LONG.pack_into(self.memory, at + 32, now)
        return at

    def position(self, text: str) -> None:
        """Say where the main thread stands."""
        data = text.encode(errors="replace")[:POSITION_SIZE]
        memory = self.memory
        SHORT.pack_into(memory, POSITION_AT, 0)
        memory[POSITION_AT + 2 : POSITION_AT + 2 + len(data)] = data
        SHORT.pack_into(memory, POSITION_AT, len(data))

    def end(self, status: ProcessStatus, code: int = 0) -> None:
        """Say how this process ended; the first to say so is right, but a raised error beats a plain end."""
        if os.getpid() != self.pid or self.get(Field.STATUS) == ProcessStatus.RAISED:
            return
        self.set(Field.EXIT_CODE, code)
        self.set(Field.ENDED, time.monotonic_ns())
        self.set(Field.STATUS, status)

    def arrivals_at(self, index: int) -> int:
        """Return where the arrivals of a reducer's parameter are counted."""
        return ARRIVALS_AT + ARRIVAL_SIZE * index


def _reserve(descriptor: int) -> None:
    """Take the whole size from the disk now: a mapping that meets a full disk later ends the process by SIGBUS."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, SIZE)
    else:  # macOS
        os.ftruncate(descriptor, SIZE)


def _restart() -> int:
    count = os.environ.get("TORCHELASTIC_RESTART_COUNT", os.environ.get("SLURM_RESTART_COUNT", ""))
    return int(count) if count.isdecimal() else 0
