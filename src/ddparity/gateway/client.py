"""A small typed client: ``Client().submit(...)`` gives a ``JobHandle`` that is waited for as a future is.

It needs httpx, and nothing else of the gateway.
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from ddparity._errors import CommandFailed, UsageError
from ddparity.gateway._address import TOKEN_VARIABLE, URL_VARIABLE, address

ENDED = frozenset({"COMPLETED", "FAILED", "CANCELLED", "LOST"})
_POLL_SECONDS = 0.3
_PATIENCE_SECONDS = 60.0


class GatewayError(UsageError):
    """The gateway refused; ``status`` is the HTTP status and the text its reason."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status


class GatewayUnreachable(CommandFailed):
    """There is no gateway at that address."""


class JobHandle:
    """One job; waited for and asked as a future is."""

    def __init__(self, client: "Client", job_id: str) -> None:
        self.job_id = job_id
        self._client = client

    def __repr__(self) -> str:
        return f"JobHandle({self.job_id!r})"

    def status(self) -> dict[str, Any]:
        """Return where the job stands: ``status``, ``metrics``, ``error`` and more."""
        return self._client.status(self.job_id)

    def done(self) -> bool:
        """Return whether the job has ended, however it did."""
        return self.status()["status"] in ENDED

    def cancel(self) -> dict[str, Any]:
        """Ask for the job's end."""
        return self._client.cancel(self.job_id)

    def wait(self, timeout_s: float | None = None) -> dict[str, Any]:
        """Wait for the end and return the last status; a gateway that is started anew meanwhile is waited for.

        Raises:
            TimeoutError: The job has not ended in time.
            GatewayUnreachable: The gateway was away for longer than a minute.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        away: float | None = None
        while True:
            try:
                found = self.status()
                away = None
            except GatewayUnreachable:
                away = away or time.monotonic()
                if time.monotonic() - away > _PATIENCE_SECONDS:
                    raise
                found = {"status": "UNKNOWN"}
            if found["status"] in ENDED:
                return found
            if deadline is not None and time.monotonic() > deadline:
                raise TimeoutError(f"the job {self.job_id!r} is {found['status']} after {timeout_s:g} s")
            time.sleep(_POLL_SECONDS)

    def result(self, timeout_s: float | None = None) -> dict[str, Any]:
        """Wait for the end and return the metrics.

        Raises:
            CommandFailed: The job ended otherwise than COMPLETED; the text says how.
            TimeoutError: It has not ended in time.
        """
        found = self.wait(timeout_s)
        if found["status"] != "COMPLETED":
            raise CommandFailed(f"The job {self.job_id!r} is {found['status']}: {found['error']}")
        return found["metrics"]


class Client:
    """Calls one gateway.

    Args:
        url: Its address; by default ``DDPARITY_GATEWAY_URL``, else what a gateway wrote into the store, else the
            default port of this machine.
        token: By default ``DDPARITY_TOKEN``.
        store: A store whose gateway is meant where no address is given.
    """

    def __init__(self, url: str | None = None, token: str | None = None, *, store: Path | None = None) -> None:
        self.url, _ = address(url, store)
        token = token or os.environ.get(TOKEN_VARIABLE)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._http = httpx.Client(base_url=self.url, headers=headers, timeout=30)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the connections."""
        self._http.close()

    def submit(self, job_id: str, world_size: int, batch_size: int, **settings: Any) -> JobHandle:
        """Submit a job; further settings as the API has them: ``entry``, ``args``, ``gate``, ``record``...

        Raises:
            GatewayError: It was refused, for one because there is a job of that name.
            GatewayUnreachable: There is no gateway.
        """
        body = {"job_id": job_id, "world_size": world_size, "batch_size": batch_size, **settings}
        self._call("POST", "/api/v1/jobs/submit", json=body)
        return JobHandle(self, job_id)

    def job(self, job_id: str) -> JobHandle:
        """Return a handle of a job that is there already."""
        return JobHandle(self, job_id)

    def status(self, job_id: str) -> dict[str, Any]:
        """Return where a job stands."""
        return self._call("GET", f"/api/v1/jobs/status/{_quoted(job_id)}")

    def cancel(self, job_id: str) -> dict[str, Any]:
        """Ask for a job's end."""
        return self._call("POST", f"/api/v1/jobs/{_quoted(job_id)}/cancel")

    def events(self, job_id: str) -> list[dict[str, Any]]:
        """Return what happened to a job."""
        return self._call("GET", f"/api/v1/jobs/{_quoted(job_id)}/events", params={"limit": 1000})["events"]

    def verdict(self, job_id: str) -> dict[str, Any]:
        """Return the verdict on a recorded job."""
        return self._call("GET", f"/api/v1/jobs/{_quoted(job_id)}/verdict")

    def jobs(self, **filters: Any) -> Iterator[dict[str, Any]]:
        """Yield jobs, the newest first; filters as the API has them: ``status``, ``prefix``, ``everybody``..."""
        cursor: str | None = None
        while True:
            page = self._call("GET", "/api/v1/jobs", params=filters | ({"cursor": cursor} if cursor else {}))
            yield from page["jobs"]
            cursor = page["next"]
            if cursor is None:
                return

    def logs(
        self, job_id: str, rank: str = "0", *, phase: str = "train", attempt: int | None = None, follow: bool = False
    ) -> Iterator[bytes]:
        """Yield a log piece by piece; with ``follow`` until the job has ended."""
        params: dict[str, Any] = {"phase": phase} | ({} if attempt is None else {"attempt": attempt})
        path = f"/api/v1/jobs/{_quoted(job_id)}/logs/{_quoted(rank)}"
        if follow:
            yield from self._followed(f"{path}/stream", params)
            return
        with self._streamed(path, params) as answer:
            yield from answer.iter_bytes()

    def _followed(self, path: str, params: dict[str, Any]) -> Iterator[bytes]:
        with self._streamed(path, params) as answer:
            kind, data = "", list[str]()
            for line in answer.iter_lines():
                name, _, value = line.partition(":")
                if name == "event":
                    kind = value.strip()
                elif name == "data":
                    data.append(value.removeprefix(" "))
                elif not line:
                    if kind == "end":
                        return
                    yield "\n".join(data).encode()
                    kind, data = "", list[str]()

    def _streamed(self, path: str, params: dict[str, Any]) -> "_Stream":
        return _Stream(self._http.stream("GET", path, params=params, timeout=httpx.Timeout(30, read=60)), self.url)

    def _call(self, method: str, path: str, **options: Any) -> Any:
        try:
            answer = self._http.request(method, path, **options)
        except httpx.TransportError as error:
            raise _unreachable(self.url, error) from error
        _check(answer)
        return answer.json()


class _Stream:
    """An answer that is read while it comes."""

    def __init__(self, opened: Any, url: str) -> None:
        self._opened = opened
        self._url = url

    def __enter__(self) -> httpx.Response:
        try:
            answer: httpx.Response = self._opened.__enter__()
        except httpx.TransportError as error:
            raise _unreachable(self._url, error) from error
        if answer.status_code >= 400:
            answer.read()
            _check(answer)
        return answer

    def __exit__(self, *error: Any) -> None:
        self._opened.__exit__(*error)


def _check(answer: httpx.Response) -> None:
    if answer.status_code < 400:
        return
    try:
        detail = str(answer.json()["detail"])
    except (ValueError, KeyError, TypeError):
        detail = f"the gateway answered {answer.status_code}"
    raise GatewayError(answer.status_code, detail)


def _unreachable(url: str, error: Exception) -> GatewayUnreachable:
    return GatewayUnreachable(
        f"There is no gateway at {url} ({type(error).__name__}). Start one (ddparity serve), or name another: "
        f"--url or {URL_VARIABLE}."
    )


def _quoted(part: str) -> str:
    from urllib.parse import quote

    return quote(part, safe="")
