"""The calls about trials: which there are, what each says of itself, and one held against another."""

from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Path, Query
from fastapi.responses import Response
from starlette.concurrency import run_in_threadpool

from ddparity._errors import TraceError
from ddparity.gateway._api import ANSWERS
from ddparity.gateway._auth import Reader, TheService
from ddparity.gateway._documents import (
    CommunicationDocument,
    MemoryDocument,
    TrialDocument,
    TrialLines,
    communication_document,
    memory_document,
    trial_document,
    trial_lines,
)
from ddparity.gateway._errors import ErrorBody, Refused
from ddparity.gateway._openapi import documented
from ddparity.gateway._service import Service
from ddparity.gateway._tokens import Caller
from ddparity.judge import Comparison, Examination, TrialCheck, Verdict
from ddparity.report import render_json
from ddparity.trace import TrialStatus
from ddparity.trials import read_facts

TRIAL_ANSWERS: dict[int | str, dict[str, Any]] = {
    **{code: ANSWERS[code] for code in (401, 403, 429, 500)},
    404: {"model": ErrorBody, "description": "You have no such trial."},
    422: {"model": ErrorBody, "description": "A value cannot be used, or a trial cannot be read."},
    503: {"model": ErrorBody, "description": "Judging took too long, or the database cannot be used just now."},
}
TRIAL_CURSOR = r"^[A-Za-z0-9_][A-Za-z0-9._\-]{0,159}$"
Shown = Literal["RUNNING", "COMPLETED", "FAILED", "TIMED_OUT", "INTERRUPTED", "DAMAGED"]
NamedTrial = Annotated[
    str, Path(max_length=1024, description="The trial's id.", examples=["20261130-172353676-digits-2180"])
]
Meant = Annotated[str, Query(max_length=1024, examples=["20261130-172353676-digits-2180"])]
router = APIRouter(prefix="/api/v1", tags=["trials"], responses=TRIAL_ANSWERS)


def answer(document: Any) -> Response:
    """Return a document as JSON; numbers that are not finite become null."""
    return Response(msgspec.json.encode(document), media_type="application/json")


@router.get("/trials", response_class=Response, responses=documented(TrialLines, "Some trials, the newest first."))
def list_trials(
    service: TheService,
    caller: Reader,
    prefix: Annotated[str, Query(max_length=128, description="Only trials whose name begins so.")] = "",
    status: Annotated[Shown | None, Query(description="Only trials with this.")] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    cursor: Annotated[str | None, Query(pattern=TRIAL_CURSOR, description="The `next` of the page before.")] = None,
) -> Response:
    """List the trials of the caller's jobs, the newest first; with the scope admin, all of the store."""
    found = service.trials.page(caller, prefix=prefix, status=status or "", limit=limit, cursor=cursor)
    return answer(trial_lines(found))


@router.get(
    "/trials/{trial_id}",
    response_class=Response,
    responses=documented(TrialDocument, "The document of `ddparity trials show --json`, without verdicts."),
)
def trial(trial_id: NamedTrial, service: TheService, caller: Reader) -> Response:
    """Return the facts of a trial, of each of its ranks, and what it was held against."""
    return answer(shown_trial(service, caller, trial_id))


def shown_trial(service: Service, caller: Caller, trial_id: str) -> TrialDocument:
    """Return all facts of a trial.

    Raises:
        TrialMissing: The caller may see no such trial.
        Refused: 422 where its ``trial.json`` cannot be read.
    """
    try:
        return trial_document(service.trials, caller, service.trials.find(caller, trial_id))
    except TraceError as error:
        raise unreadable(service, error) from None


@router.get(
    "/trials/{trial_id}/check",
    response_class=Response,
    responses=documented(TrialCheck, "What its layers come to without a control."),
)
async def check(trial_id: NamedTrial, service: TheService, caller: Reader) -> Response:
    """Judge one trial by itself."""
    return answer((await examined(service, caller, trial_id)).check)


@router.get(
    "/trials/{trial_id}/memory",
    response_class=Response,
    responses=documented(MemoryDocument, "What each rank held along the steps."),
)
async def memory(trial_id: NamedTrial, service: TheService, caller: Reader) -> Response:
    """Return the memory of a trial's ranks."""
    return answer(memory_document(await examined(service, caller, trial_id)))


@router.get(
    "/trials/{trial_id}/communication",
    response_class=Response,
    responses=documented(CommunicationDocument, "The calls between its ranks."),
)
async def communication(trial_id: NamedTrial, service: TheService, caller: Reader) -> Response:
    """Return what a trial's ranks asked of each other, and where each of them is."""
    return answer(communication_document(await examined(service, caller, trial_id)))


@router.get(
    "/compare",
    response_class=Response,
    responses=documented(Verdict, "The document of `ddparity compare --json`."),
)
async def compare(control: Meant, candidate: Meant, service: TheService, caller: Reader) -> Response:
    """Hold a candidate against a control. Nothing is kept of it in the store."""
    found = await compared(service, caller, control, candidate)
    return Response(await run_in_threadpool(render_json, found.verdict), media_type="application/json")


async def examined(service: Service, caller: Caller, trial_id: str) -> Examination:
    """Return what a trial says of itself, judged now or remembered.

    Raises:
        TrialMissing: The caller may see no such trial.
        Refused: It cannot be judged.
    """
    folder = await run_in_threadpool(service.trials.find, caller, trial_id)
    runs = await run_in_threadpool(_runs, service, caller, trial_id)
    document = await service.judging.judged(caller.owner, folder, runs=runs)
    return await run_in_threadpool(msgspec.msgpack.decode, document, type=Examination)


async def compared(service: Service, caller: Caller, control: str, candidate: str) -> Comparison:
    """Return what a candidate comes to against a control, judged now or remembered.

    Raises:
        TrialMissing: The caller may see no such trial.
        Refused: They cannot be judged.
    """
    names = (control, candidate)
    folders = [await run_in_threadpool(service.trials.find, caller, name) for name in names]
    runs = [await run_in_threadpool(_runs, service, caller, name) for name in names]
    document = await service.judging.judged(caller.owner, *folders, runs=any(runs))
    return await run_in_threadpool(msgspec.msgpack.decode, document, type=Comparison)


def _runs(service: Service, caller: Caller, trial_id: str) -> bool:
    try:
        return read_facts(service.trials.find(caller, trial_id)).status is TrialStatus.RUNNING
    except TraceError as error:
        raise unreadable(service, error) from None


def unreadable(service: Service, error: Exception) -> Refused:
    """Return the refusal for a file that cannot be read; where the store stands is nobody's business."""
    return Refused(422, str(error).replace(f"{service.trials.store.root}/", ""))
