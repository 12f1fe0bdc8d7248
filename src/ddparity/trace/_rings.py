"""Reading the rings of a trial: what every process asked of the others. The bytes are untrusted."""

import struct
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from ddparity._errors import TraceError

from ._ring_format import (
    ARRIVALS_AT,
    ARRIVALS_SIZE,
    COLLECTIVES,
    FOLDER,
    MAGIC,
    POSITION_AT,
    POSITION_SIZE,
    RECORD,
    RECORD_SIZE,
    RECORDS_AT,
    REDUCE_OPS,
    SIZE,
    STRINGS_AT,
    STRINGS_SIZE,
    VERSION,
    CallFlag,
    Field,
    Kind,
    ProcessStatus,
)

MAX_RINGS = 65_536
_MAX_STRINGS = 65_536
_KINDS = frozenset(Kind)
_FLAGS = sum(CallFlag)
_ARRIVAL = struct.Struct("<iii4x")
_LENGTH = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class Call:
    """One record of a ring; times are nanoseconds of the host's monotonic clock, 0 where nothing happened."""

    serial: int
    entered: int
    launched: int
    waited: int
    done: int
    kind: Kind
    flags: CallFlag
    group: str
    seq: int
    step: int
    dtype: str
    reduce_op: str
    root: int
    tag: int
    numel: int
    num_bytes: int
    shape: str
    layout: str
    name: str
    stack: tuple[str, ...]
    """The user's frames, innermost first, each ``file:line in function`` with ``@`` and the lines of its loops."""
    origin: str
    num_tensors: int
    argument: str
    """Source of the first argument at the place of the call, as ``p.grad``."""

    @property
    def op(self) -> str:
        """The operation in the words of torch.distributed."""
        return self.kind.name.lower()

    @property
    def site(self) -> str:
        """Where the user's code called it, ``file:line in function``."""
        return place(self.stack)


@dataclass
class Ring:
    """What one process left; ``calls`` holds every record that is still there, in order."""

    path: Path
    header: dict[Field, int]
    strings: list[str]
    position: tuple[str, ...]
    """Where the main thread stood at the last heartbeat, innermost frame first."""
    arrivals: list[tuple[int, int, int]]
    """Of each reduced gradient: step of its last arrival plus 1, arrivals in that step, step of its first plus 1."""
    records: list[Call] = field(default_factory=list)

    def __getitem__(self, name: Field) -> int:
        return self.header[name]

    def text(self, name: Field) -> str:
        """Return the string that a field of the header names, or an empty one."""
        return _string(self.strings, self.header[name])

    @property
    def rank(self) -> int:
        """The rank in the default group, or that of the environment before there is one."""
        return self.header[Field.RANK]

    @property
    def status(self) -> ProcessStatus:
        """How the process ended, as it said itself."""
        return ProcessStatus(self.header[Field.STATUS])

    @cached_property
    def calls(self) -> list[Call]:
        """The collective and point-to-point calls, in order."""
        return [record for record in self.records if record.kind in COLLECTIVES]

    @property
    def num_lost(self) -> int:
        """How many records the ring has overwritten."""
        return max(0, self.header[Field.NUM_RECORDS] - len(self.records))

    def notes(self, kind: Kind) -> list[tuple[Call, dict[str, Any]]]:
        """Return the records of a kind whose name is JSON, each with what it says."""
        found = []
        for record in self.records:
            if record.kind is kind:
                try:
                    found.append((record, msgspec.json.decode(record.name, type=dict[str, Any])))
                except (msgspec.MsgspecError, RecursionError):
                    continue
        return found

    def wall(self, monotonic_ns: int) -> float:
        """Return a time of the monotonic clock as seconds since the epoch."""
        return (self.header[Field.STARTED_WALL] + monotonic_ns - self.header[Field.STARTED]) / 1e9


def place(stack: tuple[str, ...]) -> str:
    """Return the innermost frame of a stack without its loops, or an empty text."""
    return stack[0].partition(" @")[0] if stack else ""


def loops(frame: str) -> tuple[int, ...]:
    """Return the lines of the loops around a frame, outermost first."""
    return tuple(int(line) for line in frame.partition(" @")[2].split(",") if line.isdecimal())


def read_rings(folder: Path) -> list[Ring]:
    """Read every ring of a trial, by rank and time of start; an empty list where there is none.

    Raises:
        TraceError: If a file is no ring, is of another version, or there are too many.
    """
    paths = sorted((folder / FOLDER).glob("*.ring"))
    if len(paths) > MAX_RINGS:
        raise TraceError(f"{folder / FOLDER}: {len(paths)} rings, more than the {MAX_RINGS} that are read.")
    rings = [read_ring(path) for path in paths]
    return sorted(rings, key=lambda ring: (ring.rank, ring[Field.STARTED_WALL], ring[Field.PID]))


def read_head(path: Path) -> Ring:
    """Read what a ring says of its process, and none of its records: quick enough to do it every second.

    Raises:
        TraceError: If it is no ring of this version.
    """
    return _head(path, _bytes(path, STRINGS_AT))


def read_ring(path: Path) -> Ring:
    """Read one ring, of a process that has ended or still runs.

    Raises:
        TraceError: If it is no ring of this version.
    """
    data = _bytes(path, SIZE + 1)
    if len(data) != SIZE:
        raise TraceError(f"{path}: {len(data)} bytes, and a ring has {SIZE}. Record the trial again.")
    ring = _head(path, data)
    ring.strings = _strings(data, ring[Field.STRING_BYTES])
    ring.records = _records(data, ring.strings)
    return ring


def _bytes(path: Path, size: int) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(size)
    except OSError as error:
        raise TraceError(f"{path}: cannot be read ({error.strerror}). Record the trial again.") from error


def _head(path: Path, data: bytes) -> Ring:
    if len(data) < STRINGS_AT or data[:8] != MAGIC:
        raise TraceError(f"{path}: not a ring that ddparity wrote. Record the trial again.")
    header = {name: struct.unpack_from("<q", data, name)[0] for name in Field}
    if header[Field.VERSION] != VERSION:
        raise TraceError(f"{path}: version {header[Field.VERSION]}; this ddparity reads {VERSION}. Record it again.")
    if header[Field.STATUS] not in set(ProcessStatus):
        raise TraceError(f"{path}: no process ends with status {header[Field.STATUS]}. Record the trial again.")
    arrivals = [_ARRIVAL.unpack_from(data, ARRIVALS_AT + at) for at in range(0, ARRIVALS_SIZE, _ARRIVAL.size)]
    while arrivals and arrivals[-1] == (0, 0, 0):
        arrivals.pop()
    return Ring(path, header, [""], _position(data), arrivals)


def _position(data: bytes) -> tuple[str, ...]:
    (length,) = struct.unpack_from("<H", data, POSITION_AT)
    text = data[POSITION_AT + 2 : POSITION_AT + 2 + min(length, POSITION_SIZE)].decode(errors="replace")
    return tuple(line for line in text.split("\n") if line)


def _strings(data: bytes, used: int) -> list[str]:
    """Return the strings; number 0 is the empty one."""
    found, at = [""], 0
    end = min(max(used, 0), STRINGS_SIZE)
    while at + _LENGTH.size <= end and len(found) < _MAX_STRINGS:
        (length,) = _LENGTH.unpack_from(data, STRINGS_AT + at)
        at += _LENGTH.size
        if at + length > end:
            break
        found.append(data[STRINGS_AT + at : STRINGS_AT + at + length].decode(errors="replace"))
        at += length
    return found


def _string(strings: list[str], number: int) -> str:
    return strings[number] if 0 <= number < len(strings) else ""


def _records(data: bytes, strings: list[str]) -> list[Call]:
    stacks = [tuple(text.split("\n")) if text else () for text in strings]
    found = []
    words = memoryview(data)[RECORDS_AT:SIZE].cast("Q")[:: RECORD_SIZE // 8]  # the serial numbers, in native order
    for slot in (index for index, serial in enumerate(words) if serial):
        row = RECORD.unpack_from(data, RECORDS_AT + slot * RECORD_SIZE)
        serial, entered, launched, waited, done, kind, flags, group, seq, _, step, dtype, op = row[:13]
        if kind not in _KINDS:
            continue
        root, tag, numel, num_bytes, shape, layout, name, stack, origin, num_tensors, argument = row[14:-1]
        found.append(
            Call(
                serial=serial,
                entered=entered,
                launched=launched,
                waited=waited,
                done=done,
                kind=Kind(kind),
                flags=CallFlag(flags & _FLAGS),
                group=_string(strings, group),
                seq=seq,
                step=step,
                dtype=_string(strings, dtype),
                reduce_op=REDUCE_OPS[op] if 0 <= op < len(REDUCE_OPS) else "other",
                root=root,
                tag=tag,
                numel=numel,
                num_bytes=num_bytes,
                shape=_string(strings, shape),
                layout=_string(strings, layout),
                name=_string(strings, name),
                stack=stacks[stack] if 0 <= stack < len(stacks) else (),
                origin=_string(strings, origin),
                num_tensors=num_tensors,
                argument=_string(strings, argument),
            )
        )
    return sorted(found, key=lambda call: call.serial)
