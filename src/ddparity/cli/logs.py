"""``ddparity logs``: what a rank of a job wrote, whole or live."""

import sys
from typing import Annotated

import typer

from ddparity.cli._gateway import JobArgument, UrlOption, client
from ddparity.cli._options import StoreOption


def logs(
    job: JobArgument,
    rank: Annotated[str, typer.Option(metavar="R", help="A rank, or agent: the launcher's own.")] = "0",
    phase: Annotated[str, typer.Option(metavar="PHASE", help="gate, train or verdict.")] = "train",
    attempt: Annotated[int | None, typer.Option(metavar="K", help="Which attempt. Default: the last.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job has ended.")] = False,
    url: UrlOption = None,
    store: StoreOption = None,
) -> None:
    """Print what a rank of a job wrote."""
    with client(url, store) as gateway:
        for piece in gateway.logs(job, rank, phase=phase, attempt=attempt, follow=follow):
            sys.stdout.buffer.write(piece)
            sys.stdout.buffer.flush()
