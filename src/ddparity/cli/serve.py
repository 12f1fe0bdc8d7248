"""``ddparity serve``: take training jobs over HTTP."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ddparity._errors import UsageError
from ddparity.cli._options import StoreOption
from ddparity.cli._output import emit, say

if TYPE_CHECKING:
    from ddparity.gateway._settings import Settings


def serve(
    store: StoreOption = None,
    host: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Default 127.0.0.1; any other address demands tokens.")
    ] = None,
    port: Annotated[int | None, typer.Option(metavar="PORT", help="Default 8720; 0 picks a free one.")] = None,
    root: Annotated[
        list[Path] | None,
        typer.Option("--root", metavar="FOLDER", help="Scripts below it may be run. May be repeated."),
    ] = None,
    slots: Annotated[
        int | None, typer.Option(metavar="N", help="Processes at a time, on processors. Default: the GPUs, else 8.")
    ] = None,
    database: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Default: gateway.sqlite in the store; or postgresql+psycopg://..."),
    ] = None,
    allowed_host: Annotated[
        list[str] | None, typer.Option("--allowed-host", metavar="NAME", help="A name under which it may be called.")
    ] = None,
    require_tokens: Annotated[bool, typer.Option("--require-tokens", help="Demand tokens on loopback too.")] = False,
    slurm: Annotated[bool, typer.Option("--slurm", help="Let jobs ask for the engine 'slurm'.")] = False,
    paused: Annotated[bool, typer.Option("--paused", help="Take jobs in and start none.")] = False,
    create_token: Annotated[
        str | None, typer.Option("--create-token", metavar="OWNER", help="Print a new token of an owner, and end.")
    ] = None,
    scopes: Annotated[str, typer.Option(metavar="LIST", help="Of the new token: read, submit, admin.")] = "submit",
    days: Annotated[float | None, typer.Option(metavar="D", help="After which the new token expires.")] = None,
    revoke_token: Annotated[
        str | None, typer.Option("--revoke-token", metavar="ID", help="End a token (ddp_ID_...), and end.")
    ] = None,
) -> None:
    """Take training jobs over HTTP, and run each apart from this process.

    Settings stand in gateway.toml of the store and in DDPARITY_GATEWAY_... too; what is given here goes first.
    Stopping or killing this process ends no job: start it again, and it knows what became of each.
    """
    _need_extra()
    from ddparity.gateway._settings import Settings
    from ddparity.trials import Store

    folder = Store.resolve(store).root
    settings = Settings.load(
        folder,
        host=host,
        port=port,
        roots=root or None,
        slots=slots,
        database_url=database,
        allowed_hosts=allowed_host or None,
        require_tokens=require_tokens or None,
        slurm=slurm or None,
        paused=paused or None,
    )
    folder.mkdir(parents=True, exist_ok=True)
    if create_token is not None or revoke_token is not None:
        _tokens(settings, create_token, [each.strip() for each in scopes.split(",")], days, revoke_token)
        return
    _run(settings)


def _need_extra() -> None:
    """Say which extra to install where the gateway's libraries are missing."""
    try:
        import ddparity.gateway._server  # noqa: F401 - whether it can be had is the question
    except ImportError as error:
        if error.name is None or error.name.startswith("ddparity"):
            raise
        raise UsageError(f"The gateway needs {error.name}. Install it: pip install 'ddparity[gateway]'") from error


def _tokens(
    settings: "Settings", owner: str | None, scopes: list[str], days: float | None, revoked: str | None
) -> None:
    from ddparity.gateway._database import Database
    from ddparity.gateway._tokens import Tokens

    database = Database(settings.url)
    try:
        database.migrate()
        tokens = Tokens(database)
        if owner is not None:
            emit(tokens.create(owner, scopes, days=days))
            say("this is the only time that the token can be read; clients take it from DDPARITY_TOKEN")
        if revoked is not None:
            if not tokens.revoke(revoked):
                raise UsageError(f"There is no valid token with the id {revoked[:40]!r}: it stands between ddp_ and _.")
            say(f"the token {revoked} is revoked")
    finally:
        database.close()


def _run(settings: "Settings") -> None:
    from ddparity.gateway._server import run

    run(settings)
