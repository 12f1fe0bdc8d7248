"""What stands in front of every route: who may call at all, how much, and what browsers are told.

One plain ASGI layer. It refuses, before anything is read: a Host that is not this gateway's (a web page whose name was
rebound to 127.0.0.1), a request that changes something and comes from another site's page, a body that is too large,
and more requests than a caller may make.
"""

import json
import logging
import secrets
import time
from collections import OrderedDict
from typing import Any
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ddparity.gateway._settings import LOOPBACK, Settings

_LOG = logging.getLogger("ddparity.gateway")
SECURITY_HEADERS = [
    (b"content-security-policy", b"default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"same-origin"),  # without a referrer a form of our own would come from Origin: null
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
]
_SAFE = {"GET", "HEAD", "OPTIONS"}
_MAX_CALLERS = 10_000


class Shield:
    """The layer in front of ``app``."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._settings = settings
        self._hosts = {*LOOPBACK, settings.host, *settings.allowed_hosts}
        self._rates = Rates(settings.rate_per_s)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or answer it with its refusal."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        refusal = self._refusal(scope, headers)
        if refusal is not None:
            await _answer(send, *refusal)
            return
        body = _Body(receive, self._settings.max_body_bytes)
        answer = _Answer(send, body)
        try:
            await self._app(scope, body.receive, answer.send)
        except TooLarge:
            if not answer.started:
                await _answer(send, 413, _too_large(self._settings.max_body_bytes))
        except Exception as error:
            number = logged(error)
            if answer.started:
                raise
            await _answer(send, 500, f"This is a fault of the gateway; its log has it under {number}.")

    def _refusal(self, scope: Scope, headers: dict[str, str]) -> tuple[int, str] | None:
        host = _name(headers.get("host", ""))
        if "*" not in self._hosts and host not in self._hosts:
            return 421, f"This gateway is not called {host[:100]!r}. Add the name: ddparity serve --allowed-host NAME"
        if scope["method"] not in _SAFE and not _same_origin(headers):
            return 403, "The request comes from a page of another site."
        length = headers.get("content-length", "0")
        if not length.isdigit() or int(length) > self._settings.max_body_bytes:
            return 413, _too_large(self._settings.max_body_bytes)
        if not self._rates.take(_caller(scope, headers)):
            return 429, f"More than {self._settings.rate_per_s:g} requests a second. Wait a little."
        return None


def logged(error: Exception) -> str:
    """Write what was unexpected into the gateway's log; return the number under which it stands there."""
    number = secrets.token_hex(4)
    _LOG.error("unexpected error %s", number, exc_info=error)
    return number


class TooLarge(Exception):
    """The body grew beyond what is allowed while it was read."""


class Rates:
    """How many requests a second each caller may make: a bucket that holds one second's worth."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._most = max(rate, 1.0)
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, caller: str) -> bool:
        """Return whether the caller may make one request more now."""
        now = time.monotonic()
        left, then = self._buckets.pop(caller, (self._most, now))
        left = min(self._most, left + (now - then) * self._rate)
        allowed = left >= 1.0
        self._buckets[caller] = (left - 1.0 if allowed else left, now)
        if len(self._buckets) > _MAX_CALLERS:
            self._buckets.popitem(last=False)
        return allowed


class _Body:
    """Counts the bytes of a body as they come: a length that was not told is no way around the limit."""

    def __init__(self, receive: Receive, limit: int) -> None:
        self._receive = receive
        self._left = limit
        self.limit = limit

    @property
    def too_large(self) -> bool:
        return self._left < 0

    async def receive(self) -> Message:
        message = await self._receive()
        self._left -= len(message.get("body", b""))
        if self._left < 0:
            raise TooLarge
        return message


class _Answer:
    """Adds the headers to an answer, and has the limit of the body go before any other."""

    def __init__(self, send: Send, body: _Body) -> None:
        self._send = send
        self._body = body
        self._replaced = False
        self.started = False

    async def send(self, message: Message) -> None:
        if self._replaced:
            return
        if self._body.too_large and not self.started:  # whatever the route made of it
            self._replaced = self.started = True
            await _answer(self._send, 413, _too_large(self._body.limit))
            return
        if message["type"] == "http.response.start":
            self.started = True
            there = {name.lower() for name, _ in message.get("headers", [])}
            extra = [(name, value) for name, value in SECURITY_HEADERS if name not in there]
            message = {**message, "headers": [*message.get("headers", []), *extra]}
        await self._send(message)


async def _answer(send: Send, status: int, detail: str) -> None:
    body = json.dumps({"code": status, "detail": detail, "errors": []}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), *SECURITY_HEADERS]
    if status == 429:
        headers.append((b"retry-after", b"1"))
    if status == 413:
        headers.append((b"connection", b"close"))
    start: dict[str, Any] = {"type": "http.response.start", "status": status, "headers": headers}
    await send(start)
    await send({"type": "http.response.body", "body": body})


def _too_large(limit: int) -> str:
    return f"The body is larger than {limit} bytes."


def _name(host: str) -> str:
    """Return the name of a Host header without its port."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].lower()


def _same_origin(headers: dict[str, str]) -> bool:
    """Return whether a request was made by a page of this gateway, or by no page at all."""
    if headers.get("sec-fetch-site") not in (None, "same-origin", "none"):
        return False
    origin = headers.get("origin")
    return origin is None or urlsplit(origin).netloc.lower() == headers.get("host", "").lower()


def _caller(scope: Scope, headers: dict[str, str]) -> str:
    client = scope.get("client")
    return f"{client[0] if client else ''} {headers.get('authorization', '')[:20]}"
