"""One error body for every answer that is no success.

``detail`` is always a sentence. Nothing of the inside is told: what was unexpected is in the gateway's log, under the
number that the answer carries.
"""

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, Field
from sqlalchemy.exc import OperationalError
from starlette.exceptions import HTTPException

from ddparity.gateway._entries import EntryRefused
from ddparity.gateway._job import JobExists, JobMissing, QueueFull
from ddparity.gateway._shield import logged
from ddparity.gateway._trials import TrialMissing

_MAX_ERRORS = 20


class ErrorBody(BaseModel):
    """What went wrong."""

    code: int = Field(description="The HTTP status.", examples=[400])
    detail: str = Field(description="What went wrong, in a sentence.", examples=["The job 'digits-1' exists already."])
    errors: list[dict[str, Any]] = Field(
        default_factory=list[dict[str, Any]], description="Field by field, where a request was not valid."
    )


class Refused(HTTPException):
    """An answer that is no success, with its sentence."""


def error_answer(
    status: int, detail: str, errors: list[dict[str, Any]] | None = None, headers: dict[str, str] | None = None
) -> JSONResponse:
    """Return the one error body."""
    body = ErrorBody(code=status, detail=detail, errors=errors or [])
    return JSONResponse(body.model_dump(), status_code=status, headers=headers)


def invalid(found: list[dict[str, Any]]) -> JSONResponse:
    """Return 422 with what pydantic found, without the values that were sent."""
    errors = [{"field": ".".join(map(str, each["loc"])), "problem": each["msg"]} for each in found[:_MAX_ERRORS]]
    sentence = "; ".join(f"{each['field'] or 'request'}: {each['problem']}" for each in errors)
    return error_answer(422, sentence or "The request is not valid.", errors)


PageOf = Callable[[Request, int, str], Response | None]
"""Makes a page of an error where a browser asked for one."""


def install_errors(app: FastAPI, page_of: PageOf) -> None:
    """Have every error answered in the one way."""

    async def http(request: Request, error: Exception) -> Response:
        answer = await _http(request, error)
        assert isinstance(error, HTTPException)
        return page_of(request, error.status_code, error.detail) or answer

    async def missing(request: Request, error: Exception) -> Response:
        return page_of(request, 404, str(error)) or error_answer(404, str(error))

    answers: dict[type[Exception], int] = {EntryRefused: 422, JobExists: 400, QueueFull: 429}
    for kind, status in answers.items():
        app.add_exception_handler(kind, _as(status))
    app.add_exception_handler(JobMissing, missing)
    app.add_exception_handler(TrialMissing, missing)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(RequestValidationError, _not_valid)
    app.add_exception_handler(OperationalError, _database)


def _as(status: int) -> Any:
    async def answer(_request: Request, error: Exception) -> JSONResponse:
        return error_answer(status, str(error), headers={"Retry-After": "5"} if status == 429 else None)

    return answer


async def _http(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    detail = error.detail if isinstance(error.detail, str) else "The request was refused."
    if error.status_code == 404 and detail == "Not Found":
        detail = "There is no such page. The API is described at /openapi.json"
    return error_answer(error.status_code, detail, headers=dict(error.headers or {}))


async def _not_valid(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    return invalid([dict(each, loc=tuple(each["loc"])[1:]) for each in error.errors()])


async def _database(_request: Request, error: Exception) -> JSONResponse:
    number = logged(error)
    return error_answer(503, f"The gateway's database cannot be written just now ({number}). Try again.")
