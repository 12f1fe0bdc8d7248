"""The ring of a process: one memory-mapped file of fixed size that outlives SIGKILL and SIGABRT.

    header     4 KiB    who this is, its heartbeat, how it ended
    arrivals   64 KiB   of each gradient that a wrapper reduces: step of its last arrival plus 1, number of arrivals in
                        that step, step of its first arrival plus 1, spare; 4 bytes each
    strings    2 MiB    each text once, as length and UTF-8; others name it by its number
    records    2 MiB    the first HEAD records stay; those after them share a ring of RING

A record is written whole before its serial number is; what a dying process left half written is not there.
"""

import struct
from enum import IntEnum, IntFlag

MAGIC = b"DDPARING"
VERSION = 1
FOLDER = "comm"
"""Folder of a trial in which the rings stand, one file a process."""

HEADER_SIZE = 4096
ARRIVALS_SIZE = 65536
STRINGS_SIZE = 2 << 20
HEAD, RING = 4096, 12288
ARRIVAL_SIZE = 16
ARRIVALS_AT = HEADER_SIZE
STRINGS_AT = ARRIVALS_AT + ARRIVALS_SIZE
RECORDS_AT = STRINGS_AT + STRINGS_SIZE

POSITION_AT, POSITION_SIZE = 1024, 3000
"""Where the main thread stood at the last heartbeat: length (2 bytes) and text, a frame a line, innermost first."""

RECORD = struct.Struct("<Qqqqq HHI II i I hh ii qq IIIIIi I Q")
"""serial; times entered, launched, waited, done (monotonic ns); kind, flags, group; seq in the group, operations in
it; step; dtype; reduce op, spare; root or peer, tag; elements, bytes; shape, layout, name, stack, origin, number of
tensors, argument; spare."""
RECORD_SIZE = 128
PAIR = struct.Struct("<qq")
FLAGS_OFFSET = 42
ENTERED, LAUNCHED, WAITED, DONE = 8, 16, 24, 32
"""Offsets of the times in a record."""
assert RECORD.size == RECORD_SIZE
SIZE = RECORDS_AT + (HEAD + RING) * RECORD_SIZE

SHORT = struct.Struct("<H")
INT = struct.Struct("<i")
LONG = struct.Struct("<q")


class Field(IntEnum):
    """Where a field of the header stands; each takes 8 bytes, a little-endian int64."""

    VERSION = 8
    PID = 16
    RANK = 24
    WORLD_SIZE = 32
    STARTED_WALL = 40  # time.time_ns at the moment of STARTED
    STARTED = 48  # time.monotonic_ns
    NUM_RECORDS = 56
    ACTIVE = 64  # time of the last record or of the last that completed; beside NUM_RECORDS, both change together
    HEARTBEAT = 72
    STEP = 88
    STATUS = 96
    EXIT_CODE = 104
    ENDED = 112
    STRING_BYTES = 120
    RESTART = 128
    HOST = 136  # string
    ASKED = 144  # somebody outside asks for the stacks of its threads: the only field that others write
    DUMPED = 152  # when it wrote the stacks of its threads, because it was quiet for so long
    HANG_NS = 160  # quiet for longer than this, it does
    TIMEOUT_NS = 168  # of its default group
    GAP_NS = 176  # longest time between two heartbeats
    GAP_ENDED = 184
    DISABLED = 192  # when the recorder switched itself off: calls after it are not here


class ProcessStatus(IntEnum):
    """How a process ended, as it said itself."""

    RUNNING = 0
    FINISHED = 1
    RAISED = 2
    EXITED = 3  # os._exit


class Kind(IntEnum):
    """What a record is of: calls of collectives, then marks of the training step, then notes."""

    ALL_REDUCE = 1
    BROADCAST = 2
    REDUCE = 3
    ALL_GATHER = 4
    GATHER = 5
    SCATTER = 6
    REDUCE_SCATTER = 7
    ALL_TO_ALL = 8
    BARRIER = 9
    SEND = 10
    RECV = 11
    NEW_GROUP = 20
    FORWARD = 40
    BACKWARD = 41
    OPTIMIZER = 42
    STEP = 43
    DATA = 44
    INIT = 60  # name: JSON of how init_process_group was called; done: when it returned
    GROUP = 61  # name: JSON of a group that this process is in
    REDUCER = 62  # name: JSON of the parameters that a wrapper reduces, in the order of their indices
    ERROR = 63  # name: JSON of the error that ended the process, or that a collective raised
    READ = 64  # name: parameter; seq: serial of the call whose result was read before it was waited for
    FAILURE = 65  # name: JSON of what the launcher says of its processes


COLLECTIVES = frozenset(range(Kind.ALL_REDUCE, Kind.RECV + 1))
POINT_TO_POINT = frozenset({Kind.SEND, Kind.RECV})


class CallFlag(IntFlag):
    """What else is known of a call."""

    ASYNC = 1
    WAITED = 2
    FAILED = 4
    STRIDED = 8
    NATIVE = 16  # launched by C++: nobody is seen to wait for it
    DROPPED = 32  # its handle was thrown away before anybody waited
    OVERWRITTEN = 64  # the buffer was written to between the launch and the end of the wait
    UNEVEN = 128  # shapes may differ over the ranks
    POLLED = 256  # somebody asked whether it had completed, or took its future
    COMPLETE = 512  # it had completed when its handle was dropped
    BACKWARD = 1024  # made while a backward pass was running


GAPS = "gaps "
"""Before the strides of a tensor whose elements do not fill a block of memory."""

REDUCE_OPS = ("", "sum", "avg", "product", "min", "max", "band", "bor", "bxor", "premul_sum", "other")
