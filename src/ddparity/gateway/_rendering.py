"""Templates and what they are given: how every page is made of its values."""

import shlex
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from fastapi import Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.staticfiles import StaticFiles

from ddparity.gateway._auth import COOKIE
from ddparity.gateway._tokens import Caller
from ddparity.judge import Status
from ddparity.report._wording import GLYPHS

STATIC = StaticFiles(directory=Path(__file__).parent / "static")
_NOTHING = GLYPHS[Status.NOT_TESTED]
_GLYPHS = {
    **{status.value: glyph for status, glyph in GLYPHS.items()},
    **dict.fromkeys(("COMPLETED", "FINISHED", "PROVED"), "✓"),
    **dict.fromkeys(("FAILED", "RAISED", "TIMED_OUT"), "✗"),
    **dict.fromkeys(("CANCELLED", "INTERRUPTED"), "■"),
    **dict.fromkeys(("SKIPPED", "NOT_REACHED", "NOT_PROVED"), _NOTHING),
    "PENDING": "…",
    "RUNNING": "▶",
}
_UNKNOWN = "unknown"


def _iso(seconds: float) -> str:
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
    except (OverflowError, ValueError, OSError):  # a damaged file may hold any number
        return ""


def _people(seconds: float) -> str:
    try:
        return f"{datetime.fromtimestamp(seconds).astimezone():%Y-%m-%d %H:%M:%S}"
    except (OverflowError, ValueError, OSError):
        return _UNKNOWN


def owner_query(caller: Caller, owner: str) -> str:
    """Return what a link to a job needs at its end: nothing for one's own, else the owner."""
    return "" if owner == caller.owner else f"?{urlencode({'owner': owner})}"


def _brief(command: Sequence[str]) -> str:
    """Return what tells a command from others: its script or module with its arguments, and whether it is launched."""
    words = list(command)
    launched = next((i for i, word in enumerate(words) if word.endswith(("torchrun", "torch.distributed.run"))), None)
    after = words[launched + 1 :] if launched is not None else words
    start = next((i for i, word in enumerate(after) if word.endswith(".py") or word == "-m"), 0)
    shown = shlex.join([after[start].rpartition("/")[2], *after[start + 1 :]]) if after else ""
    return shown if launched is None else f"torchrun {shown}"


_HELPERS: dict[str, Any] = {
    "glyph": lambda word: _GLYPHS.get(word, "?"),
    "iso": _iso,
    "people": _people,
    "short": lambda value: f"{value:.5g}" if isinstance(value, float) else str(value),
    "shell": shlex.join,
    "brief": _brief,
    "lasted": lambda job: f"{job.ended - job.started:.1f} s",
}
_TEMPLATES = Environment(loader=PackageLoader("ddparity.gateway"), autoescape=True, undefined=StrictUndefined)
_TEMPLATES.globals.update(_HELPERS)


def rendered(
    request: Request, template: str, caller: Caller | None, values: Mapping[str, Any], status: int = 200
) -> Response:
    """Return a page.

    Args:
        request: What was asked.
        template: File of the template.
        caller: Who asks; None where nobody is known.
        values: What the template names.
        status: HTTP status.
    """
    shared = {
        "caller": caller,
        "can_log_out": COOKIE in request.cookies,
        "place": request.url.path.strip("/").split("/")[0],
        "owner_query": lambda owner: "" if caller is None else owner_query(caller, owner),
    }
    return HTMLResponse(_TEMPLATES.get_template(template).render({**shared, **values}), status)


def problem_page(request: Request, code: int, detail: str) -> Response | None:
    """Return an error as a page where a browser asked for one; without a token, the way to the log-in."""
    path = request.url.path
    if path.startswith("/api/") or "text/html" not in request.headers.get("accept", ""):
        return None
    if code == 401:
        return RedirectResponse("/login", 303)
    return rendered(request, "problem.html", None, {"code": code, "detail": detail}, code)
