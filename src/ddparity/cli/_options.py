"""Options that several commands share."""

from typing import Annotated

import typer

StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store", metavar="FOLDER", help="Where trials are kept. Default: $DDPARITY_HOME, else .ddparity here."
    ),
]
