"""A job as the store hands it out, and the errors of the store."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row

from ddparity.gateway._request import JobRequest
from ddparity.gateway._states import State


class JobExists(ValueError):
    """The owner has a job of that name already."""


class QueueFull(RuntimeError):
    """So many jobs wait that no more are taken in."""


class JobMissing(LookupError):
    """The owner has no job of that name."""


class Conflict(RuntimeError):
    """Somebody else changed the job meanwhile; read it again."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """One job, as it was when it was read."""

    uid: str
    job_id: str
    owner: str
    state: State
    version: int
    engine: str
    engine_ref: str | None
    request: JobRequest
    num_slots: int
    priority: int
    created: float
    started: float | None
    ended: float | None
    cancelled_by: str | None
    exit_code: int | None
    error: str | None
    metrics: dict[str, Any]
    phases: dict[str, Any]
    control: str | None = None
    """Name of the control that it proves, or is held against; None where it does neither."""


@dataclass(frozen=True, kw_only=True)
class JobEvent:
    """One thing that happened to a job."""

    id: int
    time: float
    kind: str
    detail: dict[str, Any]


def job_of(row: Row[Any]) -> Job:
    """Return the job of a row of the table."""
    fields: dict[str, Any] = row._asdict()
    fields["state"] = State(fields["state"])
    fields["request"] = JobRequest.model_construct(**fields["request"])
    fields["metrics"] = fields["metrics"] or {}
    fields["phases"] = fields["phases"] or {}
    return Job(**fields)
