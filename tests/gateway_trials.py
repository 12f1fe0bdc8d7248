"""A store with trials of jobs and of nobody, made without torch or processes, for the tests of the gateway's pages."""

import itertools
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec

import synthetic
from ddparity.capture._ring import Ring
from ddparity.trace import Event, write_atomically
from ddparity.trace._ring_format import CallFlag, Kind, ProcessStatus
from ddparity.trials import read_facts

EVIL = "<script>document.title='owned'</script>"
SUMMED = synthetic.Training(world_size=2, steps=6, faults=(synthetic.Fault(kind="summed", names=("2.weight",)),))
CONTROL = synthetic.as_control(SUMMED)
PAGES = ("", "/memory", "/communication")
"""What there is below a trial."""
_MIB = 1 << 20
_COUNT = itertools.count(1)


def new_id(name: str) -> str:
    """Return an id as the store makes them; the later, the newer."""
    return f"20261130-{100_000_000 + next(_COUNT):09d}-{name}-00aa"


def write(store: Path, training: synthetic.Training, name: str, **facts: Any) -> str:
    """Write a trial with digests, memory that grows and, of several ranks, calls between them; return its id."""
    made = new_id(name)
    with _with_memory():
        folder = synthetic.write_trial(training, store / "trials" / made, name=name)
    change(folder, **{"started": 1796059880.0 + next(_COUNT), "ended": 1796060000.5, **facts})
    for rank in range(training.world_size if training.world_size > 1 else 0):
        ring(folder, rank, training.world_size)
    return made


def change(folder: Path, **facts: Any) -> None:
    """Change facts of a trial."""
    found = read_facts(folder)
    for name, value in facts.items():
        setattr(found, name, value)
    write_atomically(folder / "trial.json", msgspec.json.encode(found))


def ring(folder: Path, rank: int, world_size: int, *, calls: int = 6, ended: bool = True) -> None:
    """Write what a rank asked of the others: so many all-reduces, the last one open where it has not ended."""
    made = Ring(folder, rank=rank, world_size=world_size)
    text = made.string
    stack = text("train.py:7 in main @3,5\ntrain.py:20 in <module>")
    made.note(Kind.INIT, '{"backend": "gloo"}')
    made.note(Kind.GROUP, msgspec.json.encode({"label": "world", "ranks": list(range(world_size))}).decode())
    begin = time.monotonic_ns()
    for number in range(1, calls + 1):
        at = made.call(
            begin + 1_000_000 * number, Kind.ALL_REDUCE, int(CallFlag.WAITED), text("world"), number, 0, number,
            text("float32"), 1, 0, -1, 0, 8, 32, text("2x4"), 0, text("2.weight"), stack, 0, 1, text("p.grad"),
        )  # fmt: skip
        if ended or number < calls:
            made.stamp(at, 32, begin + 1_000_000 * number + 500_000)
    if ended:
        made.end(ProcessStatus.FINISHED)


def give(store: Path, job_id: str, control: str) -> str:
    """Let a job of the gateway be held against a control; return the name of its training."""
    with closing(sqlite3.connect(store / "gateway.sqlite", timeout=30)) as database, database:
        database.execute("UPDATE jobs SET control = ? WHERE job_id = ?", (control, job_id))
        (uid,) = database.execute("SELECT uid FROM jobs WHERE job_id = ?", (job_id,)).fetchone()
    return f"job-{uid}"


@contextmanager
def _with_memory() -> Iterator[None]:
    """Let the ranks of a synthetic training say what they hold: more each step."""
    end = synthetic.Rank._end

    def ended(rank: synthetic.Rank, step: int) -> None:
        held = (100 + 3 * step) * _MIB
        points = {"start": held, "forward": held + 5 * _MIB, "end": held + 3 * _MIB}
        capacity = {"bytes": 1 << 30, "by": "machine"}
        rank.event(Event.MEMORY, step, name="step", source="malloc", points=points, rss=held * 2, capacity=capacity)
        end(rank, step)

    synthetic.Rank._end = ended
    try:
        yield
    finally:
        synthetic.Rank._end = end
