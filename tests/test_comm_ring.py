"""The ring: what is written is read back, whatever was cut short or damaged, and however often it went round."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ddparity import TraceError
from ddparity.capture._ring import Ring as Writer
from ddparity.trace._ring_format import HEAD, RECORDS_AT, RING, SIZE, CallFlag, Field, Kind, ProcessStatus
from ddparity.trace._rings import loops, place, read_head, read_ring, read_rings

WRITES = "import sys\nfrom pathlib import Path\nfrom ddparity.capture._ring import Ring\n"
WRITES += "from ddparity.trace._ring_format import Kind\n"


def call(ring: Writer, number: int, kind: Kind = Kind.ALL_REDUCE) -> int:
    text = ring.string
    stack = text("train.py:7 in main @3,5\ntrain.py:20 in <module>")
    head = (1000 + number, kind, int(CallFlag.ASYNC), text("world"), number, 0, number // 4, text("float32"), 1, 0)
    return ring.call(*head, -1, 0, 8, 32, text("2x4"), 0, text("fc.weight"), stack, 0, 1, text("p.grad"))


def test_a_call_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    ring = Writer(tmp_path, rank=1, world_size=2)
    at = call(ring, 1)
    ring.stamp(at, 32, 5000)
    ring.flag(at, CallFlag.WAITED)
    ring.position("train.py:9 in main")
    ring.end(ProcessStatus.EXITED, 3)
    (read,) = read_rings(tmp_path)
    (found,) = read.calls
    assert (read.rank, read[Field.WORLD_SIZE], read.status, read[Field.EXIT_CODE]) == (1, 2, ProcessStatus.EXITED, 3)
    assert (found.op, found.reduce_op, found.dtype, found.shape, found.numel) == (
        "all_reduce",
        "sum",
        "float32",
        "2x4",
        8,
    )
    assert (found.group, found.seq, found.name, found.argument) == ("world", 1, "fc.weight", "p.grad")
    assert (found.entered, found.done, found.flags) == (1001, 5000, CallFlag.ASYNC | CallFlag.WAITED)
    assert place(found.stack) == "train.py:7 in main"
    assert loops(found.stack[0]) == (3, 5)
    assert read.position == ("train.py:9 in main",)


def test_the_first_calls_and_the_last_stay_when_it_goes_round(tmp_path: Path) -> None:
    ring = Writer(tmp_path, rank=0, world_size=1)
    total = HEAD + RING + 500
    for number in range(1, total + 1):
        call(ring, number)
    read = read_ring(ring.path)
    kept = [found.serial for found in read.calls]
    assert kept == [*range(1, HEAD), *range(total - RING + 1, total + 1)]
    assert read.num_lost == total - len(kept)


def test_it_outlives_sigkill(tmp_path: Path) -> None:
    code = WRITES + "ring = Ring(Path(sys.argv[1]), rank=0, world_size=2)\n"
    code += 'ring.note(Kind.ERROR, \'{"type": "ValueError"}\')\nimport os; os.kill(os.getpid(), 9)'
    done = subprocess.run([sys.executable, "-c", code, tmp_path], timeout=60)
    assert done.returncode == -9
    (read,) = read_rings(tmp_path)
    assert read.status is ProcessStatus.RUNNING
    assert read.notes(Kind.ERROR)[0][1] == {"type": "ValueError"}


def test_a_raised_error_is_not_overwritten_by_the_end(tmp_path: Path) -> None:
    ring = Writer(tmp_path, rank=0, world_size=1)
    ring.end(ProcessStatus.RAISED, 1)
    ring.end(ProcessStatus.FINISHED)
    assert read_head(ring.path).status is ProcessStatus.RAISED


def test_too_many_strings_are_no_fault(tmp_path: Path) -> None:
    ring = Writer(tmp_path, rank=0, world_size=1)
    numbers = {ring.string(f"{number} {'x' * 50_000}") for number in range(60)}
    assert 0 in numbers
    call(ring, 1)
    assert len(read_ring(ring.path).calls) == 1


@pytest.mark.parametrize("size", [0, 8, 4096, RECORDS_AT, SIZE - 1])
def test_a_ring_that_is_cut_short_is_refused(tmp_path: Path, size: int) -> None:
    ring = Writer(tmp_path, rank=0, world_size=1)
    os.truncate(ring.path, size)
    with pytest.raises(TraceError, match="ring"):
        read_ring(ring.path)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(st.integers(8, RECORDS_AT + 512), st.binary(min_size=1, max_size=40)), min_size=1, max_size=6)
)
def test_damaged_bytes_never_raise_anything_but_a_trace_error(tmp_path: Path, damage: list[tuple[int, bytes]]) -> None:
    ring = Writer(tmp_path, rank=0, world_size=1)
    call(ring, 1)
    for at, data in damage:
        ring.memory[at : at + len(data)] = data
    try:
        read = read_ring(ring.path)
    except TraceError:
        return
    assert all(found.op for found in read.calls)
    assert isinstance(read.position, tuple)
