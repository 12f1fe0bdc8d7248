"""The calls about ladders. A ladder belongs to the store and to no job: the scope admin sees it."""

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from fastapi.responses import Response

from ddparity._errors import TraceError, UsageError
from ddparity.gateway._auth import Reader, TheService
from ddparity.gateway._documents import LadderLines
from ddparity.gateway._errors import ErrorBody, Refused
from ddparity.gateway._openapi import documented
from ddparity.gateway._service import Service
from ddparity.gateway._tokens import Caller
from ddparity.gateway._trial_api import TRIAL_ANSWERS, answer, unreadable
from ddparity.trials._ladders import LadderResult

LADDER_ANSWERS: dict[int | str, dict[str, Any]] = {
    **TRIAL_ANSWERS,
    404: {"model": ErrorBody, "description": "You may see no such ladder."},
    422: {"model": ErrorBody, "description": "A value cannot be used, or the ladder cannot be read."},
}
LADDER_CURSOR = r"^[0-9]{1,9}$"
router = APIRouter(prefix="/api/v1/ladders", tags=["ladders"], responses=LADDER_ANSWERS)
NamedLadder = Annotated[str, Path(max_length=1024, description="The ladder's name.", examples=["ladder"])]


@router.get("", response_class=Response, responses=documented(LadderLines, "Some ladders, the last written first."))
def list_ladders(
    service: TheService,
    caller: Reader,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    cursor: Annotated[str | None, Query(pattern=LADDER_CURSOR, description="The `next` of the page before.")] = None,
) -> Response:
    """List the ladders of the store, the one that was written last first; none without the scope admin."""
    return answer(ladder_lines(service, caller, limit=limit, cursor=cursor))


@router.get(
    "/{name}",
    response_class=Response,
    responses=documented(LadderResult, "The document of `ddparity ladder --json`."),
)
def ladder(name: NamedLadder, service: TheService, caller: Reader) -> Response:
    """Return what a climb has come to, also while it is under way."""
    return answer(shown_ladder(service, caller, name))


def ladder_lines(service: Service, caller: Caller, *, limit: int, cursor: str | None) -> LadderLines:
    """Return some ladders and, where they cannot be read, why."""
    names = service.ladders.names() if caller.may("admin") else []
    start = int(cursor or 0)
    found = LadderLines(ladders=[], next=str(start + limit) if start + limit < len(names) else None)
    for name in names[start : start + limit]:
        try:
            found.ladders.append(service.ladders.read(name))
        except TraceError as error:
            found.damaged.append(str(unreadable(service, error).detail))
        except UsageError:  # removed since it was listed
            continue
    return found


def shown_ladder(service: Service, caller: Caller, name: str) -> LadderResult:
    """Return one ladder.

    Raises:
        Refused: 404 where there is none that the caller may see, 422 where it cannot be read.
    """
    missing = f"There is no ladder {name[:80]!r}. See: ddparity ladders, or GET /api/v1/ladders"
    if not caller.may("admin"):
        raise Refused(404, missing)
    try:
        return service.ladders.read(name)
    except TraceError as error:
        raise unreadable(service, error) from None
    except UsageError:
        raise Refused(404, missing) from None
