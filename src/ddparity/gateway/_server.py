"""Running the application: the socket, the refusal to stand open, and the line that says where it is."""

import json
import os
import socket
import sys
from pathlib import Path

import uvicorn

from ddparity._errors import UsageError
from ddparity.gateway._database import Database
from ddparity.gateway._settings import Settings
from ddparity.gateway._tokens import Tokens
from ddparity.gateway.app import create_app
from ddparity.trace import write_atomically

_SHUTDOWN_SECONDS = 5


def run(settings: Settings) -> None:
    """Serve until the process is told to end; jobs run on.

    Raises:
        UsageError: The address cannot be used, or is open to others and there is no token.
    """
    if settings.needs_tokens:
        _need_a_token(settings)
    listening = _bound(settings.host, settings.port)
    host, port = listening.getsockname()[:2]
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    address = settings.store / "gateway.json"
    write_atomically(address, json.dumps({"url": url, "pid": os.getpid()}).encode())
    print(f"ddparity: gateway at {url}, store {settings.store}", file=sys.stderr, flush=True)
    try:
        uvicorn.Server(server_config(settings)).run(sockets=[listening])
    finally:
        _forget(address)


def server_config(settings: Settings) -> uvicorn.Config:
    """Return how uvicorn serves the gateway."""
    return uvicorn.Config(
        create_app(settings),
        log_level="warning",
        access_log=False,
        use_colors=False if os.environ.get("NO_COLOR") else None,
        server_header=False,
        timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
        proxy_headers=False,
    )


def _need_a_token(settings: Settings) -> None:
    database = Database(settings.url)
    try:
        database.migrate()
        if Tokens(database).any_valid():
            return
    finally:
        database.close()
    raise UsageError(
        f"The address {settings.host} can be reached by others, and there is no token. Make one: "
        f"ddparity serve --store {settings.store} --create-token OWNER"
    )


def _bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(2048)
    except OSError as error:
        listening.close()
        raise UsageError(
            f"{host}:{port} cannot be listened on ({error.strerror}). Name another with --port."
        ) from error
    return listening


def _forget(address: Path) -> None:
    try:
        if json.loads(address.read_bytes())["pid"] == os.getpid():
            address.unlink()
    except (OSError, ValueError, KeyError):
        return
