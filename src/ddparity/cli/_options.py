"""Options that several commands share, and what a shell offers for the name of a trial."""

from typing import Annotated

import typer

from ddparity._errors import DdparityError

StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store", metavar="FOLDER", help="Where trials are kept. Default: $DDPARITY_HOME, else .ddparity here."
    ),
]


def trial_names(context: typer.Context, incomplete: str) -> list[str]:
    """Return the names of the store's trials that begin as what was typed does, for the completion of a shell."""
    from ddparity.trials import Store

    try:
        names = {facts.name for facts in Store.resolve(context.params.get("store")).trials()}
    except DdparityError:
        return []
    return sorted(name for name in names if name.startswith(incomplete))
