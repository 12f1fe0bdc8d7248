"""The pages about trials: the list, one trial, its memory, its communication, and one held against another."""

from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, Response
from markupsafe import Markup
from starlette.concurrency import run_in_threadpool

from ddparity.gateway._auth import Reader, TheService
from ddparity.gateway._documents import TrialDocument, TrialLine, communication_document, memory_document, trial_lines
from ddparity.gateway._rendering import rendered
from ddparity.gateway._service import Service
from ddparity.gateway._tokens import Caller
from ddparity.gateway._trial_api import TRIAL_CURSOR, NamedTrial, compared, examined, shown_trial
from ddparity.judge import LAYERS, Finding, LayerVerdict, TrialCheck, Verdict
from ddparity.report import (
    calls_figure,
    memory_figure,
    report_body,
    report_layers,
    report_style,
    samples_figure,
)
from ddparity.trace import TrialFacts, TrialStatus
from ddparity.trials import outcome

_PAGE = 50
_MAX_OFFERED = 100
_MAX_SHOWN_RANKS = 64
STATUSES = [*(status.value for status in TrialStatus), "DAMAGED"]
router = APIRouter(include_in_schema=False)


@router.get("/static/report.css")
def report_css() -> Response:
    """Return the style sheet of what stands in reports."""
    return Response(report_style(), media_type="text/css")


@router.get("/trials", response_class=HTMLResponse)
def trials_page(
    request: Request,
    service: TheService,
    caller: Reader,
    prefix: str = "",
    status: str = "",
    cursor: Annotated[str | None, Query(pattern=TRIAL_CURSOR)] = None,
) -> Response:
    """Show the list of trials."""
    prefix, status = prefix[:128], status if status in STATUSES else ""
    found = service.trials.page(caller, prefix=prefix, status=status, limit=_PAGE, cursor=cursor)
    query = {"prefix": prefix, **({"status": status} if status else {})}
    shown = {
        "page": trial_lines(found),
        "next": f"/trials?{urlencode({**query, 'cursor': found.cursor})}",
        "twin": f"/api/v1/trials?{urlencode(query)}",
        "words": STATUSES,
        "status": status,
        "prefix": prefix,
        "everything": caller.may("admin"),
    }
    return rendered(request, "trials.html", caller, shown)


@router.get("/trials/{trial_id}", response_class=HTMLResponse)
async def trial_page(request: Request, trial_id: NamedTrial, service: TheService, caller: Reader) -> Response:
    """Show one trial: its facts, its ranks, what its layers come to by themselves, what it was held against."""
    document = await run_in_threadpool(shown_trial, service, caller, trial_id)
    found = await examined(service, caller, trial_id)
    return await run_in_threadpool(_trial_rendered, request, service, caller, document, found.check, found.pictures)


def _trial_rendered(
    request: Request, service: Service, caller: Caller, document: TrialDocument, check: TrialCheck, pictures: Any
) -> Response:
    trial = document.trial
    seen = set(service.trials.visible(caller, _beside(document)))
    shown = {
        "document": document,
        "trial": trial,
        "outcome": outcome(trial),
        "ranks": document.ranks[:_MAX_SHOWN_RANKS],
        "seen": seen,
        "control": _control(service, trial, seen),
        "layers": Markup(report_layers(_as_verdict(check))),
        "samples": Markup(samples_figure(pictures.samples)),
        "controls": [each for each in _offered(service, caller) if each.control and each.id != trial.id],
        "twin": f"/api/v1/trials/{trial.id}",
        "check_twin": f"/api/v1/trials/{trial.id}/check",
    }
    return rendered(request, "trial.html", caller, shown)


def _control(service: Service, trial: TrialFacts, seen: set[str]) -> str | None:
    """Return what a trial is best held against: the control of its job, or the one it was recorded beside."""
    job = service.trials.job_of(trial.id)
    control = None if job is None else service.trials.of_job(job).control
    return control or (trial.against if trial.against in seen else None)


def _beside(document: TrialDocument) -> list[str]:
    """Return the trials that a trial's facts name."""
    trial = document.trial
    named = [trial.against, trial.pinned]
    if trial.proof is not None:
        named.append(trial.proof.repeat)
    if trial.floors is not None:
        named += [trial.floors.float64, trial.floors.moved]
    return [each for each in named if each]


def _offered(service: Service, caller: Caller) -> list[TrialLine]:
    """Return the newest trials, for lists to choose from."""
    return trial_lines(service.trials.page(caller, limit=_MAX_OFFERED)).trials


@router.get("/trials/{trial_id}/memory", response_class=HTMLResponse)
async def memory_page(request: Request, trial_id: NamedTrial, service: TheService, caller: Reader) -> Response:
    """Show what each rank of a trial held along the steps."""
    found = memory_document(await examined(service, caller, trial_id))
    values = {
        "figure": lambda: Markup(memory_figure(found.memory)),
        "findings": found.findings,
        "twin": f"/api/v1/trials/{found.trial}/memory",
    }
    return await _layer_rendered(request, caller, "memory", found.trial, found.layer, values)


@router.get("/trials/{trial_id}/communication", response_class=HTMLResponse)
async def communication_page(request: Request, trial_id: NamedTrial, service: TheService, caller: Reader) -> Response:
    """Show what a trial's ranks asked of each other, and where each of them is."""
    found = communication_document(await examined(service, caller, trial_id))
    values = {
        "figure": lambda: Markup(calls_figure(found.timeline)),
        "calls": found.calls,
        "findings": found.findings,
        "twin": f"/api/v1/trials/{found.trial}/communication",
    }
    return await _layer_rendered(request, caller, "communication", found.trial, found.layer, values)


async def _layer_rendered(
    request: Request, caller: Caller, name: str, trial: str, layer: LayerVerdict, values: dict[str, Any]
) -> Response:
    def make() -> Response:
        one = TrialCheck(trial=trial, layers={name: layer}, findings=_renumbered(values["findings"]))
        shown = {
            **values,
            "trial_id": trial,
            "layers": Markup(report_layers(_as_verdict(one))),
            "figure": values["figure"](),
        }
        return rendered(request, f"{name}.html", caller, shown)

    return await run_in_threadpool(make)


def _renumbered(findings: list[Finding]) -> list[Finding]:
    """Let the findings of one layer follow from each other only: their numbers are those of a longer list."""
    for number, finding in enumerate(findings):
        finding.follows = 0 if number and finding.follows is not None else None
    return findings


def _as_verdict(check: TrialCheck) -> Verdict:
    """Return a check in the form of a verdict without a control, for what shows verdicts."""
    order = [name for name in LAYERS if name in check.layers]
    return Verdict(
        control="",
        candidate=check.trial,
        partial=check.partial,
        partial_reasons=check.partial_reasons,
        layers={name: check.layers[name] for name in order},
        findings=check.findings,
    )


@router.get("/compare", response_class=HTMLResponse)
async def compare_page(
    request: Request, service: TheService, caller: Reader, control: str = "", candidate: str = ""
) -> Response:
    """Hold one trial against another; without both, ask which."""
    if not control or not candidate:
        return await run_in_threadpool(_asked, request, service, caller, control, candidate)
    found = await compared(service, caller, control[:1024], candidate[:1024])

    def make() -> Response:
        shown = {
            "control": control,
            "candidate": candidate,
            "report": Markup(report_body(found.verdict, found.pictures)),
            "twin": f"/api/v1/compare?{urlencode({'control': control, 'candidate': candidate})}",
        }
        return rendered(request, "compare.html", caller, shown)

    return await run_in_threadpool(make)


def _asked(request: Request, service: Service, caller: Caller, control: str, candidate: str) -> Response:
    offered = _offered(service, caller)
    shown = {
        "controls": [each for each in offered if each.control] or offered,
        "candidates": [each for each in offered if not each.control] or offered,
        "control": control,
        "candidate": candidate,
        "report": "",
    }
    return rendered(request, "compare.html", caller, shown)
