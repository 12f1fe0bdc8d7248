"""``ddparity cancel``: end a job of a gateway."""

from typing import Annotated

import typer

from ddparity.cli._busy import Busy
from ddparity.cli._gateway import JobArgument, JsonOption, UrlOption, client
from ddparity.cli._options import StoreOption
from ddparity.cli._output import emit_json, say


def cancel(
    job: JobArgument,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until no process of it is left.")] = False,
    url: UrlOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Ask for the end of a job; one that has ended stays as it is."""
    with client(url, store) as gateway:
        found = gateway.cancel(job)
        if wait:
            with Busy(f"waiting for the end of {job}"):
                found = gateway.job(job).wait()
    ended = found["status"] in ("COMPLETED", "FAILED", "CANCELLED", "LOST")
    if as_json:
        emit_json(found)
    say(f"{job}: {found['status']}{'' if ended else ', its end was asked for'}")
