"""A store for a command that makes trials of its own: kept where the user says, else thrown away."""

import contextlib
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Annotated

import typer

from ddparity.trials import Store

KeepOption = Annotated[
    str | None,
    typer.Option("--store", metavar="FOLDER", help="Keep the trials in this store; otherwise they are thrown away."),
]


@contextlib.contextmanager
def kept_or_thrown_away(store: str | None) -> Generator[Store]:
    """Give the store that the user named, or one that is removed afterwards."""
    if store is not None:
        yield Store.resolve(store)
        return
    with tempfile.TemporaryDirectory(prefix="ddparity-", ignore_cleanup_errors=True) as folder:
        yield Store(Path(folder))
