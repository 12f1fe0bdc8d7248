"""The store of jobs: every change is one guarded statement, told in ``job_events`` by the same transaction."""

import time
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Table, bindparam, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from ddparity.gateway._database import Database
from ddparity.gateway._job import Conflict, Job, JobEvent, JobExists, JobMissing, job_of
from ddparity.gateway._request import JobRequest
from ddparity.gateway._room import Room
from ddparity.gateway._states import ACTIVE, FOLLOWS, State
from ddparity.gateway._tables import EventRow, JobRow, SlotRow

_JOBS: Table = JobRow.__table__  # type: ignore[assignment]
_EVENTS: Table = EventRow.__table__  # type: ignore[assignment]
_SLOTS: Table = SlotRow.__table__  # type: ignore[assignment]

_ENTERED = ("uid", "job_id", "owner", "state", "version", "engine", "request", "num_slots", "priority", "created")
# Statements that every submission makes are put together once: that takes longer than running them.
_ENTER = insert(_JOBS).values({name: bindparam(name) for name in _ENTERED})
_TELL = insert(_EVENTS).values({name: bindparam(name) for name in ("job_uid", "time", "kind", "detail")})
_BY_UID = select(_JOBS).where(_JOBS.c.uid == bindparam("uid"))
_FIND = select(_JOBS).where(_JOBS.c.owner == bindparam("owner"), _JOBS.c.job_id == bindparam("job_id"))


@dataclass(frozen=True, kw_only=True)
class Page:
    """Some jobs of a list, the newest first, and where the next page begins (None at the end)."""

    jobs: list[Job]
    cursor: str | None


class Jobs:
    """The jobs of one database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._room = Room()

    def submit(self, request: JobRequest, owner: str, *, num_slots: int, max_owner_queued: int, max_queued: int) -> Job:
        """Enter a job as PENDING.

        Raises:
            JobExists: The owner has one of that name.
            QueueFull: Too many wait.
        """
        job = Job(
            uid=uuid.uuid4().hex,
            job_id=request.job_id,
            owner=owner,
            state=State.PENDING,
            version=0,
            engine=request.engine,
            engine_ref=None,
            request=request,
            num_slots=num_slots,
            priority=request.priority,
            created=time.time(),
            started=None,
            ended=None,
            cancelled_by=None,
            exit_code=None,
            error=None,
            metrics={},
            phases={},
        )
        row = {name: getattr(job, name) for name in _ENTERED}
        try:
            with self._database.write() as connection:
                if not self._room.has(owner):
                    self._room.count(connection, owner, max_owner_queued, max_queued)
                connection.execute(_ENTER, {**row, "state": job.state.value, "request": request.model_dump()})
                _tell(connection, job.uid, State.PENDING.value, {"by": owner})
        except IntegrityError as error:
            raise JobExists(
                f"The job {job.job_id!r} exists already. Choose another job_id, or ask for its status."
            ) from error
        self._room.take(owner)
        return job

    def by_uid(self, uid: str) -> Job:
        """Return the job with this number.

        Raises:
            JobMissing: There is none.
        """
        with self._database.read() as connection:
            row = connection.execute(_BY_UID, {"uid": uid}).first()
        if row is None:
            raise JobMissing(f"There is no job with the number {uid!r}.")
        return job_of(row)

    def find(self, owner: str, job_id: str) -> Job:
        """Return an owner's job.

        Raises:
            JobMissing: The owner has none of that name; whether somebody else does is not told.
        """
        with self._database.read() as connection:
            row = connection.execute(_FIND, {"owner": owner, "job_id": job_id}).first()
        if row is None:
            raise JobMissing(f"There is no job {job_id[:128]!r}. See: ddparity jobs, or GET /api/v1/jobs")
        return job_of(row)

    def page(
        self,
        owner: str | None,
        *,
        states: Iterable[State] = (),
        prefix: str = "",
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page:
        """Return jobs, the newest first; everybody's where ``owner`` is None.

        Raises:
            ValueError: The cursor is none of ours.
        """
        query = select(_JOBS).order_by(_JOBS.c.created.desc(), _JOBS.c.uid.desc()).limit(limit + 1)
        if owner is not None:
            query = query.where(_JOBS.c.owner == owner)
        if wanted := [state.value for state in states]:
            query = query.where(_JOBS.c.state.in_(wanted))
        if prefix:
            query = query.where(_JOBS.c.job_id.startswith(prefix, autoescape=True))
        if cursor is not None:
            created, _, uid = cursor.partition("~")
            at = float(created)
            older = (_JOBS.c.created < at) | ((_JOBS.c.created == at) & (_JOBS.c.uid < uid))
            query = query.where(older)
        with self._database.read() as connection:
            jobs = [job_of(row) for row in connection.execute(query)]
        more = len(jobs) > limit
        jobs = jobs[:limit]
        return Page(jobs=jobs, cursor=f"{jobs[-1].created!r}~{jobs[-1].uid}" if more else None)

    def of_uids(self, uids: Iterable[str]) -> dict[str, Job]:
        """Return the jobs of these numbers, by number."""
        with self._database.read() as connection:
            query = select(_JOBS).where(_JOBS.c.uid.in_(list(uids)))
            return {row.uid: job_of(row) for row in connection.execute(query)}

    def uids_of(self, owner: str, uids: Iterable[str]) -> set[str]:
        """Return those of the numbers that are of an owner's jobs."""
        query = select(_JOBS.c.uid).where(_JOBS.c.owner == owner, _JOBS.c.uid.in_(list(uids)))
        with self._database.read() as connection:
            return set(connection.scalars(query))

    def controls_of(self, owner: str, names: Iterable[str]) -> set[str]:
        """Return those of the names that are of controls which an owner's jobs prove, or are held against."""
        query = select(_JOBS.c.control).distinct()
        query = query.where(_JOBS.c.owner == owner, _JOBS.c.control.in_(list(names)))
        with self._database.read() as connection:
            return {str(name) for name in connection.scalars(query)}

    def events(self, uid: str, *, after: int = 0, limit: int = 200) -> list[JobEvent]:
        """Return what happened to a job, the oldest first."""
        query = select(_EVENTS.c.id, _EVENTS.c.time, _EVENTS.c.kind, _EVENTS.c.detail)
        query = query.where(_EVENTS.c.job_uid == uid, _EVENTS.c.id > after).order_by(_EVENTS.c.id).limit(limit)
        with self._database.read() as connection:
            return [JobEvent(**row._asdict()) for row in connection.execute(query)]

    def active(self) -> list[Job]:
        """Return the jobs that have been given to an engine and have not ended."""
        with self._database.read() as connection:
            query = select(_JOBS).where(_JOBS.c.state.in_([state.value for state in ACTIVE])).order_by(_JOBS.c.created)
            return [job_of(row) for row in connection.execute(query)]

    def counts(self) -> dict[State, int]:
        """Return how many jobs are in each state."""
        with self._database.read() as connection:
            rows = connection.execute(select(_JOBS.c.state, func.count()).group_by(_JOBS.c.state))
            found = {State(state): count for state, count in rows}
        return {state: found.get(state, 0) for state in State}

    def change(self, job: Job, to: State, *, event: dict[str, Any] | None = None, **values: Any) -> Job:
        """Move a job from the state in which it was read to another; a terminal one frees its slots.

        Raises:
            Conflict: It is not in that state any more.
        """
        if to not in FOLLOWS[job.state]:
            raise AssertionError(f"{job.state} is never followed by {to}")
        with self._database.write() as connection:
            _guarded(connection, job, {**values, "state": to.value})
            if to.terminal:
                connection.execute(update(_SLOTS).where(_SLOTS.c.job_uid == job.uid).values(job_uid=None))
            _tell(connection, job.uid, to.value, event or {})
        return self.by_uid(job.uid)

    def start(self, job: Job, slots: Sequence[str]) -> Job | None:
        """Give a PENDING job its slots and make it STARTING, in one transaction; None if either is gone meanwhile."""
        with self._database.write() as connection:
            free = _SLOTS.c.job_uid.is_(None) & _SLOTS.c.name.in_(slots)
            taken = connection.execute(update(_SLOTS).where(free).values(job_uid=job.uid)).rowcount if slots else 0
            changed = connection.execute(
                update(_JOBS)
                .where(_JOBS.c.uid == job.uid, _JOBS.c.state == State.PENDING.value, _JOBS.c.version == job.version)
                .values(state=State.STARTING.value, version=job.version + 1)
            ).rowcount
            if taken != len(slots) or changed != 1:
                connection.rollback()
                return None
            _tell(connection, job.uid, State.STARTING.value, {"slots": list(slots)})
        return self.by_uid(job.uid)

    def note(self, job: Job, kind: str, detail: dict[str, Any], **values: Any) -> Job:
        """Tell of something that is no change of state, and keep what came of it in the job's row.

        Raises:
            Conflict: Somebody else changed the job.
        """
        with self._database.write() as connection:
            if values:
                _guarded(connection, job, values)
            _tell(connection, job.uid, kind, detail)
        return self.by_uid(job.uid)

    def cancel(self, owner: str, job_id: str, by: str) -> Job:
        """Ask for a job's end: one that waits is CANCELLED at once, one that runs when no process of it is left.

        A job that has ended stays as it is.

        Raises:
            JobMissing: The owner has none of that name.
        """
        with self._database.write() as connection:
            row = connection.execute(_FIND, {"owner": owner, "job_id": job_id}).first()
            if row is None:
                raise JobMissing(f"There is no job {job_id[:128]!r}. See: ddparity jobs, or GET /api/v1/jobs")
            job = job_of(row)
            if not job.state.terminal and job.cancelled_by is None:
                values: dict[str, Any] = {"cancelled_by": by}
                if job.state is State.PENDING:
                    values |= {"state": State.CANCELLED.value, "ended": time.time(), "error": f"cancelled by {by}"}
                _guarded(connection, job, values)
                _tell(connection, job.uid, "cancel", {"by": by})
                if job.state is State.PENDING:
                    _tell(connection, job.uid, State.CANCELLED.value, {})
        return self.by_uid(job.uid)


def _guarded(connection: Connection, job: Job, values: dict[str, Any]) -> None:
    unchanged = (_JOBS.c.uid == job.uid) & (_JOBS.c.state == job.state.value) & (_JOBS.c.version == job.version)
    statement = update(_JOBS).where(unchanged).values(**values, version=job.version + 1)
    if connection.execute(statement).rowcount != 1:
        raise Conflict(f"job {job.job_id!r} changed since it was read as {job.state} (version {job.version})")


def _tell(connection: Connection, uid: str, kind: str, detail: dict[str, Any]) -> None:
    connection.execute(_TELL, {"job_uid": uid, "time": time.time(), "kind": kind, "detail": detail})
