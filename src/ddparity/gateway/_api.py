"""The calls about jobs."""

import json
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Path, Query, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response
from pydantic import ValidationError

from ddparity.gateway._auth import Owner, Reader, Submitter, TheService
from ddparity.gateway._errors import ErrorBody, Refused, invalid
from ddparity.gateway._metrics import read_metrics, thinned
from ddparity.gateway._request import JobRequest
from ddparity.gateway._states import State
from ddparity.gateway._views import (
    EventPage,
    JobPage,
    JobStatus,
    Series,
    Submitted,
    event_of,
    status_of,
)

ANSWERS: dict[int | str, dict[str, Any]] = {
    401: {"model": ErrorBody, "description": "A token is needed."},
    403: {"model": ErrorBody, "description": "The token does not cover this."},
    404: {"model": ErrorBody, "description": "You have no such job."},
    413: {"model": ErrorBody, "description": "The body is too large."},
    422: {"model": ErrorBody, "description": "A value cannot be used."},
    429: {"model": ErrorBody, "description": "Too many requests, or too many jobs that wait."},
    500: {"model": ErrorBody, "description": "A fault of the gateway."},
    503: {"model": ErrorBody, "description": "The database cannot be written just now."},
}
EXISTS: dict[int | str, dict[str, Any]] = {
    400: {"model": ErrorBody, "description": "You have a job of that name."},
    415: {"model": ErrorBody, "description": "The body is not JSON."},
}
router = APIRouter(prefix="/api/v1/jobs", tags=["jobs"], responses=ANSWERS)

NamedJob = Annotated[str, Path(max_length=1024, description="The job's name.", examples=["digits-1"])]
_QUERY = ("job_id", "world_size", "batch_size")
Shown = Literal["PENDING", "RUNNING", "COMPLETED", "FAILED", "CANCELLED", "LOST"]
CURSOR = r"^[0-9]{1,12}(\.[0-9]{1,10})?~[0-9a-f]{32}$"


async def _body(request: Request) -> dict[str, Any]:
    """Return the JSON object of a request; nothing is an empty one."""
    data = await request.body()
    if not data:
        return {}
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":  # a form of another site could send any other kind
        raise Refused(415, "The body has to be JSON: Content-Type: application/json")
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        raise Refused(422, "The body is no JSON.") from None
    if not isinstance(document, dict):
        raise Refused(422, "The body has to be a JSON object.")
    return {name: _as_whole(value) for name, value in document.items()}


def _as_whole(value: Any) -> Any:
    """Return 2 for 2.0: in JSON they are the same number."""
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**53 else value


@router.post("/submit", response_model=Submitted, responses={**EXISTS})
def submit(
    request: Request, service: TheService, caller: Submitter, body: Annotated[dict[str, Any], Depends(_body)]
) -> Any:
    """Submit a job.

    ``job_id``, ``world_size`` and ``batch_size`` stand in the query or, with anything else that a job may have, in a
    JSON body; the query goes first. With these three alone the job is the shipped digits classifier.
    """
    given = dict(body)
    for name in _QUERY:
        if (value := request.query_params.get(name)) is not None:
            given[name] = value if name == "job_id" else _whole(value)
    try:
        wanted = JobRequest.model_validate(given)
    except ValidationError as error:
        return invalid([dict(each) for each in error.errors()])
    job = service.submit(wanted, caller.owner)
    message = f"The job {job.job_id!r} was taken in."
    return JSONResponse({"code": 200, "message": message, "job_id": job.job_id, "status": job.state.shown})


def _whole(text: str) -> int | str:
    """Return a whole number, or the text as it is, for the check to complain about."""
    return int(text) if text.isascii() and text.removeprefix("-").isdigit() and len(text) < 20 else text


@router.get("/status/{job_id}", response_model=JobStatus)
def status(job_id: NamedJob, service: TheService, _caller: Reader, owner: Owner) -> JobStatus:
    """Return where a job stands, with the last value of each of its metrics."""
    job = service.jobs.find(owner, job_id)
    return status_of(job, service.folder(job))


@router.get("", response_model=JobPage)
def list_jobs(
    service: TheService,
    caller: Reader,
    owner: Owner,
    status: Annotated[list[Shown] | None, Query(description="Only jobs with one of these.")] = None,
    prefix: Annotated[str, Query(max_length=128, description="Only jobs whose name begins so.")] = "",
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    cursor: Annotated[str | None, Query(pattern=CURSOR, description="The `next` of the page before.")] = None,
    everybody: Annotated[bool, Query(description="All owners' jobs; needs the scope admin.")] = False,
) -> JobPage:
    """List jobs, the newest first."""
    if everybody and not caller.may("admin"):
        raise Refused(403, "Only a token with the scope 'admin' may see everybody's jobs.")
    states = [state for state in State if state.shown in (status or [])]
    who = None if everybody else owner
    page = service.jobs.page(who, states=states, prefix=prefix, limit=limit, cursor=cursor)
    return JobPage(jobs=[status_of(job, service.folder(job)) for job in page.jobs], next=page.cursor)


@router.post("/{job_id}/cancel", response_model=JobStatus)
def cancel(job_id: NamedJob, service: TheService, caller: Submitter, owner: Owner) -> JobStatus:
    """Ask for a job's end. One that waits is CANCELLED at once; one that runs, when no process of it is left."""
    job = service.cancel(owner, job_id, caller.owner)
    return status_of(job, service.folder(job))


@router.get("/{job_id}/events", response_model=EventPage)
def events(
    job_id: NamedJob,
    service: TheService,
    _caller: Reader,
    owner: Owner,
    after: Annotated[int, Query(ge=0, le=2**62, description="Only what came after the event of this number.")] = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 200,
) -> EventPage:
    """Return what happened to a job, the oldest first."""
    job = service.jobs.find(owner, job_id)
    found = service.jobs.events(job.uid, after=after, limit=limit)
    return EventPage(job_id=job.job_id, events=[event_of(each) for each in found])


@router.get("/{job_id}/metrics", response_model=Series)
def metrics(job_id: NamedJob, service: TheService, _caller: Reader, owner: Owner) -> Any:
    """Return what the script logged, point by point."""
    job = service.jobs.find(owner, job_id)
    return {"job_id": job.job_id, "metrics": thinned(read_metrics(service.folder(job).metrics_path))}


@router.get(
    "/{job_id}/verdict",
    response_class=Response,
    responses={200: {"description": "The document of `ddparity compare --json`.", "content": {"application/json": {}}}},
)
def verdict(job_id: NamedJob, service: TheService, _caller: Reader, owner: Owner, html: bool = False) -> Response:
    """Return the verdict on a job that was submitted with ``record``, as JSON or as a page."""
    job = service.jobs.find(owner, job_id)
    path = service.folder(job).verdict_path
    path = path.with_suffix(".html") if html else path
    try:
        data = path.read_bytes()
    except OSError:
        why = "it was not submitted with record" if not job.request.record else "it is not made yet"
        raise Refused(404, f"The job {job_id!r} has no verdict: {why}.") from None
    if html:
        policy = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}
        return HTMLResponse(data, headers=policy)
    return Response(data, media_type="application/json")
