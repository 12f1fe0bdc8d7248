"""``ddparity plan``: the next trials between two that differ in more than one variable."""

from typing import Annotated

import typer

from ddparity.cli._options import StoreOption, trial_names
from ddparity.cli._output import emit, emit_json


def plan(
    control: Annotated[
        str, typer.Argument(autocompletion=trial_names, metavar="CONTROL", help="Name or id of the control.")
    ],
    candidate: Annotated[
        str,
        typer.Argument(
            autocompletion=trial_names, metavar="CANDIDATE", help="Name or id of the trial held against it."
        ),
    ],
    store: StoreOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
) -> None:
    """Say which variables changed between two trials, and which trials tell them apart.

    Facts that a choice brings along are part of its variable: the world size brings launcher, backend and local batch.
    """
    from ddparity.trials import Store

    trials = Store.resolve(store)
    folders = trials.find(control), trials.find(candidate)

    from ddparity.judge import plan_trials
    from ddparity.report import render_plan

    found = plan_trials(*folders)
    if as_json:
        emit_json(found)
    else:
        emit(render_plan(found).rstrip("\n"))
