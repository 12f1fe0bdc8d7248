"""What the commands that call a gateway share: where it is, and what a job looks like in a terminal."""

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ddparity._errors import UsageError
from ddparity._plain import plain

if TYPE_CHECKING:
    from ddparity.gateway.client import Client

UrlOption = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        help="The gateway. Default: $DDPARITY_GATEWAY_URL, else that of the store, else port 8720.",
    ),
]
JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="The job's name.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]


def client(url: str | None, store: str | None) -> "Client":
    """Return a client of the gateway that is meant; its token comes from ``DDPARITY_TOKEN``."""
    try:
        from ddparity.gateway.client import Client
    except ImportError as error:
        text = f"This command needs {error.name}. Install it: pip install 'ddparity[gateway]'"
        raise UsageError(text) from error
    from ddparity.trials import Store

    return Client(url, store=Store.resolve(store).root)


def lines_of(job: dict[str, Any]) -> list[str]:
    """Return a job's status as lines for people."""
    pairs = [
        ("job", f"{job['job_id']} (owner {job['owner']}, engine {job['engine']})"),
        ("status", job["status"] + (f", {job['phase']}" if job["phase"] else "")),
        ("error", job["error"] or ""),
        ("size", f"{job['world_size']} processes, {job['batch_size']} samples each"),
        ("created", when(job["created"])),
        ("started", when(job["started"])),
        ("ended", when(job["ended"])),
        ("phases", ", ".join(f"{name} {word}" for name, word in job["phases"].items())),
        *(("metric", f"{name} = {shown(value)}") for name, value in job["metrics"].items()),
    ]
    return [plain(f"{label:<9} {value}") for label, value in pairs if value]


def when(seconds: float | None) -> str:
    """Return a time as people read it; empty for none."""
    return "" if seconds is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def shown(value: Any) -> str:
    """Return a metric's value, short."""
    return f"{value:.6g}" if isinstance(value, float) else str(value)
