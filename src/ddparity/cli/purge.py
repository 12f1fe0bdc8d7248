"""``ddparity purge``: remove what of trials must never leave the machine."""

import shutil
from pathlib import Path
from typing import Annotated

import typer

from ddparity._errors import UsageError
from ddparity.cli._options import StoreOption, trial_names
from ddparity.cli._output import say


def purge(
    trials: Annotated[
        list[str] | None, typer.Argument(autocompletion=trial_names, metavar="TRIAL...", help="Names or ids of trials.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All trials of the store.")] = False,
    store: StoreOption = None,
) -> None:
    """Remove the private folders of trials: banked batches, hashes of a control's samples by position, output.

    Digests, facts and verdicts stay. A candidate that is recorded afterwards can neither be pinned to these samples nor
    find slices of them.
    """
    from ddparity.trials import Store

    if bool(trials) == everything:
        raise UsageError("Name the trials to purge, or give --all. See: ddparity trials list")
    found = Store.resolve(store)
    folders = [found.path(i) for i in found.ids()] if everything else [found.find(name) for name in trials or []]
    removed = [folder for folder in folders if _purge(folder / "private")]
    say(f"{len(removed)} of {len(folders)} trials had something private; it is gone")


def _purge(folder: Path) -> bool:
    if not folder.is_dir() or folder.is_symlink():
        return False
    shutil.rmtree(folder)
    return True
