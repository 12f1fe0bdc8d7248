"""The device slots: what there is, what is free, who has how much, and whose turn it is."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Table, delete, func, insert, select

from ddparity.gateway._database import Database
from ddparity.gateway._queue import Waiting
from ddparity.gateway._states import State
from ddparity.gateway._tables import JobRow, SlotRow

MIN_CPU_SLOTS = 8
"""Small trainings share processors well; a machine without GPUs offers at least so many."""
NVIDIA = Path("/proc/driver/nvidia/gpus")
"""Where NVIDIA's driver lists its GPUs."""
_JOBS: Table = JobRow.__table__  # type: ignore[assignment]
_SLOTS: Table = SlotRow.__table__  # type: ignore[assignment]
_PER_OWNER = 100
"""How far into one owner's queue is looked at a time."""


@dataclass(frozen=True, kw_only=True)
class Slot:
    """One device; ``position`` is its number among those of its kind."""

    name: str
    kind: str
    position: int


def found_slots(configured: int | None) -> list[Slot]:
    """Return this machine's slots: its GPUs, or shares of its processors: so many as configured, or without GPUs."""
    gpus = _gpus() if configured is None else []
    if gpus:
        return [Slot(name=f"gpu{position}", kind="gpu", position=position) for position in gpus]
    count = max(MIN_CPU_SLOTS, os.cpu_count() or 1) if configured is None else configured
    return [Slot(name=f"cpu{position}", kind="cpu", position=position) for position in range(count)]


def _gpus() -> list[int]:
    """Return the numbers of the NVIDIA GPUs that may be used, without a library that would have to be loaded for it."""
    try:
        count = sum(1 for _ in NVIDIA.iterdir())
    except OSError:
        return []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return list(range(count))
    return [int(each) for each in visible.split(",") if each.strip().isdigit() and int(each) < count]


class Slots:
    """The slots in the database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def declare(self, slots: Sequence[Slot]) -> None:
        """Make the table hold just these; one that a job still has goes when the job gives it back."""
        with self._database.write() as connection:
            there = {name for (name,) in connection.execute(select(_SLOTS.c.name))}
            names = {slot.name for slot in slots}
            unused = _SLOTS.c.job_uid.is_(None)
            connection.execute(delete(_SLOTS).where(unused, _SLOTS.c.name.not_in(names)))
            new = [slot for slot in slots if slot.name not in there]
            for slot in new:
                connection.execute(insert(_SLOTS).values(name=slot.name, kind=slot.kind, position=slot.position))

    def free(self) -> list[Slot]:
        """Return the slots that nobody has, in order."""
        return self._select(None)

    def of(self, uid: str) -> list[Slot]:
        """Return the slots that a job has."""
        return self._select(uid)

    def used(self) -> dict[str, int]:
        """Return how many slots each owner has."""
        with self._database.read() as connection:
            joined = select(_JOBS.c.owner, func.count()).join(_SLOTS, _SLOTS.c.job_uid == _JOBS.c.uid)
            rows = connection.execute(joined.group_by(_JOBS.c.owner)).all()
        return {str(row[0]): row[1] for row in rows}

    def waiting(self) -> list[Waiting]:
        """Return the queue: of each owner the first so many, which is all that a choice can depend on."""
        columns = (_JOBS.c.uid, _JOBS.c.owner, _JOBS.c.num_slots, _JOBS.c.priority, _JOBS.c.created)
        turn = func.row_number().over(
            partition_by=_JOBS.c.owner, order_by=(_JOBS.c.priority.desc(), _JOBS.c.created, _JOBS.c.uid)
        )
        ranked = select(*columns, turn.label("turn")).where(_JOBS.c.state == State.PENDING.value).subquery()
        query = select(*(ranked.c[column.name] for column in columns)).where(ranked.c.turn <= _PER_OWNER)
        with self._database.read() as connection:
            return [Waiting(**row._asdict()) for row in connection.execute(query)]

    def _select(self, uid: str | None) -> list[Slot]:
        query = select(_SLOTS.c.name, _SLOTS.c.kind, _SLOTS.c.position).order_by(_SLOTS.c.position)
        query = query.where(_SLOTS.c.job_uid.is_(None) if uid is None else _SLOTS.c.job_uid == uid)
        with self._database.read() as connection:
            return [Slot(**row._asdict()) for row in connection.execute(query)]
