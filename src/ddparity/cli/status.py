"""``ddparity status``: where a job of a gateway stands."""

from ddparity.cli._gateway import JobArgument, JsonOption, UrlOption, client, lines_of
from ddparity.cli._options import StoreOption
from ddparity.cli._output import emit, emit_json


def status(job: JobArgument, url: UrlOption = None, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Show where a job of a gateway stands, with its metrics."""
    with client(url, store) as gateway:
        found = gateway.status(job)
    if as_json:
        emit_json(found)
    else:
        emit("\n".join(lines_of(found)))
