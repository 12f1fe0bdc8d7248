"""What is answered, field by field."""

from typing import Any

from pydantic import BaseModel, Field

from ddparity.gateway._job import Job, JobEvent
from ddparity.gateway._metrics import last_values, read_metrics
from ddparity.gateway.supervisor import JobFolder

Number = float | int | str
"""A metric's value; ``nan``, ``inf`` and ``-inf`` are words, since JSON has no numbers for them."""


class Submitted(BaseModel):
    """The answer to a submitted job."""

    code: int = Field(200, examples=[200])
    message: str = Field(examples=["The job 'digits-1' was taken in."])
    job_id: str = Field(examples=["digits-1"])
    status: str = Field(examples=["PENDING"])


class JobStatus(BaseModel):
    """Where a job stands."""

    job_id: str = Field(examples=["digits-1"])
    status: str = Field(description="PENDING, RUNNING, COMPLETED, FAILED, CANCELLED or LOST.", examples=["RUNNING"])
    metrics: dict[str, Number] = Field(
        description="The last value of each metric.", examples=[{"epoch_1_loss": 1.83, "final_accuracy": 0.93}]
    )
    error: str | None = Field(description="What went wrong, or null.", examples=[None])
    phase: str | None = Field(None, description="gate, train or verdict, while it runs.", examples=["train"])
    attempt: int | None = Field(None, description="How often the phase was started before, while it runs.")
    phases: dict[str, str] = Field(
        default_factory=dict[str, str], description="What became of each phase, once the job has ended."
    )
    owner: str
    engine: str
    world_size: int
    batch_size: int
    priority: int
    created: float = Field(description="Seconds since the epoch.")
    started: float | None = None
    ended: float | None = None
    exit_code: int | None = Field(None, description="Of the last command; negative for a signal.")
    cancel_requested: bool = False


class JobPage(BaseModel):
    """Some jobs, the newest first."""

    jobs: list[JobStatus]
    next: str | None = Field(description="The cursor of the next page; null at the end.")


class Event(BaseModel):
    """One thing that happened to a job."""

    id: int
    time: float
    kind: str = Field(examples=["RUNNING"])
    detail: dict[str, Any]


class EventPage(BaseModel):
    """What happened to a job, the oldest first."""

    job_id: str
    events: list[Event]


class LogFile(BaseModel):
    """One log: of a rank, or of the agent that started the ranks."""

    phase: str = Field(examples=["train"])
    attempt: int
    rank: str = Field(description="A number, or agent.", examples=["0"])
    first: int = Field(description="The oldest byte that is still there.")
    size: int = Field(description="How many bytes were written in all.")


class LogList(BaseModel):
    """The logs of a job."""

    job_id: str
    logs: list[LogFile]


class Point(BaseModel):
    """One logged number."""

    value: Number
    step: int | None
    time: float


class Series(BaseModel):
    """The metrics of a job, point by point."""

    job_id: str
    metrics: dict[str, list[Point]]


class Health(BaseModel):
    """Whether the gateway works."""

    status: str = Field(examples=["ok"])
    dispatcher: str = Field(description="leads, follows (another gateway of this store leads) or stuck.")
    slots: int
    version: str


def status_of(job: Job, folder: JobFolder) -> JobStatus:
    """Return where a job stands; of one that runs, what its folder says goes first."""
    progress = None if job.state.terminal else folder.progress()
    metrics = job.metrics if job.state.terminal else last_values(read_metrics(folder.metrics_path))
    return JobStatus(
        job_id=job.job_id,
        status=job.state.shown,
        metrics=metrics,
        error=job.error,
        phase=None if progress is None else progress.phase,
        attempt=None if progress is None else progress.attempt,
        phases=job.phases,
        owner=job.owner,
        engine=job.engine,
        world_size=job.request.world_size,
        batch_size=job.request.batch_size,
        priority=job.priority,
        created=job.created,
        started=job.started,
        ended=job.ended,
        exit_code=job.exit_code,
        cancel_requested=job.cancelled_by is not None,
    )


def event_of(event: JobEvent) -> Event:
    """Return an event as it is answered."""
    return Event(id=event.id, time=event.time, kind=event.kind, detail=event.detail)
