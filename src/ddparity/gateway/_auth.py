"""From a request to its caller."""

import time
from typing import Annotated, Any

from fastapi import Depends, Query, Request

from ddparity.gateway._errors import Refused
from ddparity.gateway._service import Service
from ddparity.gateway._tokens import LOCAL_CALLER, Caller

COOKIE = "ddparity_token"
_REMEMBER_SECONDS = 2.0
_MAX_REMEMBERED = 1000


def service_of(request: Request) -> Service:
    """Return the gateway that a request came to."""
    return request.app.state.service


async def caller_of(request: Request) -> Caller:
    """Return who is calling.

    Raises:
        Refused: 401 where a token is demanded and none that holds was brought.
    """
    service = service_of(request)
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme and scheme.lower() != "bearer":
        token = "-"
    token = token.strip() or request.cookies.get(COOKIE, "")
    if token:
        caller = _looked_up(request.app.state.remembered, service, token)
        if caller is not None:
            return caller
    elif not service.settings.needs_tokens:
        return LOCAL_CALLER
    raise Refused(
        401,
        "A valid token is needed: Authorization: Bearer ddp_... Make one with: ddparity serve --create-token OWNER",
        headers={"WWW-Authenticate": "Bearer"},
    )


def _looked_up(remembered: dict[str, tuple[float, Caller]], service: Service, token: str) -> Caller | None:
    known = remembered.get(token)
    if known is not None and known[0] > time.monotonic():
        return known[1]
    caller = service.tokens.caller(token)
    if caller is not None:
        if len(remembered) >= _MAX_REMEMBERED:
            remembered.clear()
        remembered[token] = (time.monotonic() + _REMEMBER_SECONDS, caller)
    return caller


def needing(scope: str) -> Any:
    """Return a dependency that hands out the caller if that scope is covered."""

    async def checked(caller: Annotated[Caller, Depends(caller_of)]) -> Caller:
        if not caller.may(scope):
            raise Refused(403, f"This token does not cover {scope!r}; it covers: {', '.join(sorted(caller.scopes))}.")
        return caller

    return Depends(checked)


async def owner_meant(
    caller: Annotated[Caller, Depends(caller_of)],
    owner: Annotated[
        str | None, Query(max_length=80, description="Whose job is meant; another's needs the scope admin.")
    ] = None,
) -> str:
    """Return whose jobs a request is about: the caller's own, or those an admin names.

    Raises:
        Refused: 403 where another's are named without the scope.
    """
    if owner is None or owner == caller.owner:
        return caller.owner
    if not caller.may("admin"):
        raise Refused(403, "Only a token with the scope 'admin' may name another owner.")
    return owner


Reader = Annotated[Caller, needing("read")]
Submitter = Annotated[Caller, needing("submit")]
Owner = Annotated[str, Depends(owner_meant)]
TheService = Annotated[Service, Depends(service_of)]
