"""The pages about jobs: the list, one job, log-in. Each has its JSON twin; what is shown stands in the query string."""

from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Form, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from markupsafe import Markup

from ddparity.gateway._api import CURSOR
from ddparity.gateway._auth import COOKIE, Owner, Reader, Submitter, TheService
from ddparity.gateway._errors import Refused
from ddparity.gateway._job import Job
from ddparity.gateway._logs import job_logs
from ddparity.gateway._metrics import read_metrics, thinned
from ddparity.gateway._rendering import owner_query, rendered
from ddparity.gateway._service import Service
from ddparity.gateway._states import State
from ddparity.gateway._tokens import Caller
from ddparity.gateway._trials import JobTrials
from ddparity.gateway._views import JobPage, status_of
from ddparity.report import metric_figure

_PAGE = 50
_MAX_CHARTS = 24
router = APIRouter(include_in_schema=False)


@router.get("/", response_class=HTMLResponse)
def jobs_page(
    request: Request,
    service: TheService,
    caller: Reader,
    status: str = "",
    prefix: str = "",
    cursor: Annotated[str | None, Query(pattern=CURSOR)] = None,
    everybody: bool = False,
) -> Response:
    """Show the list of jobs."""
    if everybody and not caller.may("admin"):
        raise Refused(403, "Only a token with the scope 'admin' may see everybody's jobs.")
    words = [state.value for state in State if state is not State.STARTING]
    states = [state for state in State if state.shown == status]
    who = None if everybody else caller.owner
    page = service.jobs.page(who, states=states, prefix=prefix[:128], limit=_PAGE, cursor=cursor)
    query = {"prefix": prefix, **({"status": status} if status else {}), **({"everybody": "1"} if everybody else {})}
    shown = {
        "page": JobPage(jobs=[status_of(job, service.folder(job)) for job in page.jobs], next=page.cursor),
        "next": f"/?{urlencode({**query, 'cursor': page.cursor})}",
        "twin": f"/api/v1/jobs?{urlencode(query)}",
        "words": words,
        "status": status,
        "prefix": prefix,
        "free": len(service.slots.free()),
        "slots": len(service.declared),
    }
    return rendered(request, "jobs.html", caller, shown)


@router.get("/jobs/{job_id}", response_class=HTMLResponse)
def job_page(
    request: Request,
    job_id: str,
    service: TheService,
    caller: Reader,
    owner: Owner,
    rank: str = "0",
    phase: str = "",
    attempt: int = -1,
) -> Response:
    """Show one job: where it stands, its metrics, what happened, and a log, live."""
    job = service.jobs.find(owner, job_id)
    return rendered(request, "job.html", caller, _job_shown(service, job, caller, rank, phase, attempt))


def _job_shown(service: Service, job: Job, caller: Caller, rank: str, phase: str, attempt: int) -> dict[str, Any]:
    owner = owner_query(caller, job.owner)
    trials = service.trials.of_job(job)
    base = f"/api/v1/jobs/{quote(job.job_id, safe='')}"
    folder = service.folder(job)
    logs = sorted(job_logs(service.engines[job.engine].log_paths(job.uid)), key=lambda log: (log.phase, -log.attempt))
    wanted = [log for log in logs if log.rank == rank and phase in ("", log.phase) and attempt in (-1, log.attempt)]
    current = max(wanted, key=lambda log: (log.phase == "train", log.attempt), default=None)
    events = service.jobs.events(job.uid, limit=1000)
    gate = next((event.detail["gate"] for event in events if event.kind == "prepared"), "not started")
    series = thinned(read_metrics(folder.metrics_path))
    stream = "" if current is None else f"{base}/logs/{current.rank}/stream"
    place = {} if current is None else {"phase": current.phase, "attempt": current.attempt}
    query = urlencode({**place, **({"owner": job.owner} if owner else {})})
    return {
        "job": status_of(job, folder),
        "request": job.request,
        "ended": job.state.terminal,
        "twin": f"/api/v1/jobs/status/{quote(job.job_id, safe='')}{owner}",
        "gate": ", ".join([gate, *([job.phases["gate"]] if "gate" in job.phases else [])]),
        "verdict": job.phases.get("verdict") or ("not made yet" if job.request.record else "NOT TESTED (not recorded)"),
        "has_verdict": folder.verdict_path.exists(),
        "trials": trials,
        "comparison": _comparison(trials),
        "verdict_page": f"{base}/verdict{owner}{'&' if owner else '?'}html=true",
        "charts": [Markup(metric_figure(name, points)) for name, points in list(series.items())[:_MAX_CHARTS]],
        "events": [{"time": each.time, "kind": each.kind, "said": _said(each.detail)} for each in events],
        "logs": [
            {
                "label": f"{log.phase}{f' {log.attempt + 1}' if log.attempt else ''}: {_named(log.rank)}",
                "current": log is current,
                "page": "?"
                + urlencode(
                    {
                        "rank": log.rank,
                        "phase": log.phase,
                        "attempt": log.attempt,
                        **({"owner": job.owner} if owner else {}),
                    }
                ),
            }
            for log in logs
        ],
        "log_label": "" if current is None else f"{current.phase}, {_named(current.rank)}",
        "stream": f"{stream}?{query}" if stream else "",
        "log_file": f"{stream.removesuffix('/stream')}?{query}",
    }


def _comparison(trials: JobTrials) -> str:
    """Return the page that holds a job's training against its control, if both are in the store."""
    if not trials.trainings or trials.control is None:
        return ""
    return f"/compare?{urlencode({'control': trials.control, 'candidate': trials.trainings[0]})}"


@router.post("/jobs/{job_id}/cancel")
def cancel_form(job_id: str, service: TheService, caller: Submitter, owner: Owner) -> Response:
    """Take the cancel button's word, and show the job again."""
    service.cancel(owner, job_id, caller.owner)
    return RedirectResponse(f"/jobs/{quote(job_id, safe='')}{owner_query(caller, owner)}", 303)


@router.get("/login", response_class=HTMLResponse)
def login_page(request: Request) -> Response:
    """Ask for a token."""
    return rendered(request, "login.html", None, {"failed": False})


@router.post("/login")
def login(request: Request, service: TheService, token: Annotated[str, Form(max_length=200)]) -> Response:
    """Keep the token in a cookie that no script can read and no other site can have sent."""
    if service.tokens.caller(token.strip()) is None:
        return rendered(request, "login.html", None, {"failed": True}, 401)
    answer = RedirectResponse("/", 303)
    secure = request.url.scheme == "https"
    answer.set_cookie(COOKIE, token.strip(), httponly=True, samesite="strict", secure=secure, path="/")
    return answer


@router.post("/logout")
def logout() -> Response:
    """Forget the token."""
    answer = RedirectResponse("/login", 303)
    answer.delete_cookie(COOKIE, path="/")
    return answer


def _named(rank: str) -> str:
    return f"rank {rank}" if rank.isdigit() else rank


def _said(detail: Mapping[str, Any]) -> str:
    """Return the short parts of an event's detail in words."""
    parts: list[str] = []
    for key, value in detail.items():
        if key == "fingerprint":
            value = str(value)[:12]
        if isinstance(value, dict):
            value = ", ".join(f"{name} {word}" for name, word in value.items())
        elif isinstance(value, list):
            value = ", ".join(str(each) for each in value if not isinstance(each, dict))
        if value not in ("", None, 0):
            parts.append(f"{key} {value}")
    return "; ".join(parts)
