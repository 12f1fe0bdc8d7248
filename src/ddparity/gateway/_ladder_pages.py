"""The pages about ladders: which there are, and the rungs of one, done and under way."""

from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, Response

from ddparity.gateway._auth import Reader, TheService
from ddparity.gateway._ladder_api import LADDER_CURSOR, NamedLadder, ladder_lines, shown_ladder
from ddparity.gateway._rendering import rendered
from ddparity.report._wording import place
from ddparity.trials._ladders import DEVIATES, RUNNING, LadderResult, RungResult

_PAGE = 50
router = APIRouter(include_in_schema=False)


@router.get("/ladders", response_class=HTMLResponse)
def ladders_page(
    request: Request,
    service: TheService,
    caller: Reader,
    cursor: Annotated[str | None, Query(pattern=LADDER_CURSOR)] = None,
) -> Response:
    """Show the list of ladders."""
    found = ladder_lines(service, caller, limit=_PAGE, cursor=cursor)
    shown = {
        "page": found,
        "stopped": {result.name: _stopped(result) for result in found.ladders},
        "next": f"/ladders?cursor={found.next}",
        "twin": "/api/v1/ladders" + (f"?cursor={cursor}" if cursor else ""),
        "everything": caller.may("admin"),
    }
    return rendered(request, "ladders.html", caller, shown)


@router.get("/ladders/{name}", response_class=HTMLResponse)
def ladder_page(request: Request, name: NamedLadder, service: TheService, caller: Reader) -> Response:
    """Show one ladder, rung by rung."""
    result = shown_ladder(service, caller, name)
    there = [rung.trial for rung in result.rungs if rung.trial]
    stopped = _stopped(result)
    shown = {
        "result": result,
        "stopped": stopped,
        "finding": None if stopped is None or stopped.status != DEVIATES else _flat(stopped.finding),
        "seen": set(service.trials.visible(caller, [*there, *([result.control] if result.control else [])])),
        "next_command": result.next + ("" if result.next == result.again else service.trials.store.option),
        "runs": result.status == RUNNING,
        "twin": f"/api/v1/ladders/{quote(result.name, safe='')}",
    }
    return rendered(request, "ladder.html", caller, shown)


def _stopped(result: LadderResult) -> RungResult | None:
    """Return the rung at which a climb ended early."""
    return next((r for r in result.rungs if r.number == result.stopped_at and r.status == result.status), None)


def _flat(finding: dict[str, Any] | None) -> dict[str, str] | None:
    """Return what of a finding is shown; the file may hold anything."""
    if not isinstance(finding, dict):
        return None
    cause = finding.get("cause")
    cause = cause if isinstance(cause, dict) else {}
    phase, site, name = (str(finding.get(key, "")) for key in ("phase", "site", "name"))
    return {
        "where": place(finding.get("step"), phase, site, name),
        "text": str(cause.get("text", "")),
        "code": str(cause.get("code", "")),
        "confidence": str(cause.get("confidence", "")),
        "next": str(finding.get("next", "")).partition(" Then: ")[0],
    }
