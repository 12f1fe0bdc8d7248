"""The calls about logs: which there are, ranges of bytes, and live."""

from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Header, Path, Query, Request
from fastapi.responses import Response, StreamingResponse

from ddparity.gateway._api import ANSWERS, NamedJob
from ddparity.gateway._auth import Owner, Reader, TheService
from ddparity.gateway._errors import ErrorBody, Refused
from ddparity.gateway._job import Job
from ddparity.gateway._logs import Log, LogMissing, RangeRefused, find_log, follow, job_logs, parse_range
from ddparity.gateway._service import Service
from ddparity.gateway._views import LogFile, LogList

router = APIRouter(prefix="/api/v1/jobs", tags=["logs"], responses=ANSWERS)
Rank = Annotated[
    str, Path(pattern=r"^([0-9]{1,5}|agent(-[0-9]{1,4})?)$", description="A rank, or agent.", examples=["0"])
]
Phase = Annotated[str, Query(pattern=r"^(gate|train|verdict)$", description="gate, train or verdict.")]
Attempt = Annotated[int | None, Query(ge=0, le=100, description="Which attempt; the last one by default.")]


@router.get("/{job_id}/logs", response_model=LogList)
def logs(job_id: NamedJob, service: TheService, _caller: Reader, owner: Owner) -> LogList:
    """List the logs of a job."""
    job = service.jobs.find(owner, job_id)
    found = [
        LogFile(phase=log.phase, attempt=log.attempt, rank=log.rank, first=log.first, size=log.size)
        for log in job_logs(service.engines[job.engine].log_paths(job.uid))
    ]
    return LogList(job_id=job.job_id, logs=found)


@router.get(
    "/{job_id}/logs/{rank}",
    response_class=Response,
    responses={
        200: {"description": "All of the log.", "content": {"text/plain": {}}},
        206: {"description": "A part of it: what was asked for, or what is left.", "content": {"text/plain": {}}},
        416: {"model": ErrorBody, "description": "There are no such bytes."},
    },
)
def log(
    job_id: NamedJob,
    rank: Rank,
    service: TheService,
    _caller: Reader,
    owner: Owner,
    phase: Phase = "train",
    attempt: Attempt = None,
    range: Annotated[str | None, Header(description="bytes=FIRST-LAST")] = None,
) -> Response:
    """Return a log, or the range of it that a Range header asks for. Offsets stay true when old bytes are dropped."""
    job = service.jobs.find(owner, job_id)
    found = _found(service, job, rank, phase, attempt)
    try:
        wanted = parse_range(range, found)
    except RangeRefused as error:
        raise Refused(416, str(error), headers={"Content-Range": f"bytes */{found.size}"}) from None
    if wanted is None and found.first > 0:
        wanted = (found.first, found.size)
    start, stop = wanted or (0, found.size)
    headers = {"Accept-Ranges": "bytes", "Content-Length": str(stop - start)}
    if wanted is not None:
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{found.size}"
    return StreamingResponse(
        found.chunks(start, stop), 206 if wanted else 200, headers, media_type="text/plain; charset=utf-8"
    )


@router.get(
    "/{job_id}/logs/{rank}/stream",
    response_class=StreamingResponse,
    responses={200: {"description": "Server-sent events.", "content": {"text/event-stream": {}}}},
)
async def stream(
    request: Request,
    job_id: NamedJob,
    rank: Rank,
    service: TheService,
    _caller: Reader,
    owner: Owner,
    phase: Phase = "train",
    attempt: Attempt = None,
    last_event_id: Annotated[str | None, Header(max_length=20)] = None,
    start: Annotated[int, Query(ge=0, le=2**62, description="The first byte to send.")] = 0,
) -> StreamingResponse:
    """Send a log as it grows: event ``log`` with text, its id the offset after it, and ``end`` when the job is over."""
    job = service.jobs.find(owner, job_id)
    state = request.app.state
    if state.num_streams >= service.settings.max_streams:
        raise Refused(429, f"{service.settings.max_streams} logs are followed already. Try again later.")
    if last_event_id is not None and last_event_id.isdigit():
        start = int(last_event_id)

    def again() -> Log | None:
        try:
            return _found(service, job, rank, phase, attempt)
        except Refused:
            return None

    def over() -> bool:
        return state.stopping or service.jobs.by_uid(job.uid).state.terminal

    async def counted() -> AsyncIterator[bytes]:
        state.num_streams += 1
        try:
            async for event in follow(again, start, over):
                yield event
        finally:
            state.num_streams -= 1

    return StreamingResponse(counted(), media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})


def _found(service: Service, job: Job, rank: str, phase: str, attempt: int | None) -> Log:
    try:
        return find_log(service.engines[job.engine].log_paths(job.uid), rank, phase, attempt)
    except LogMissing as error:
        raise Refused(404, str(error)) from None
