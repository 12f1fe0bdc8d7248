"""``ddparity repro``: a script that shows a finding on another machine, with inputs that are made up."""

from pathlib import Path
from typing import Annotated

import typer

from ddparity._errors import ExitCode, UsageError
from ddparity.cli._busy import Busy
from ddparity.cli._options import StoreOption, trial_names
from ddparity.cli._output import say


def repro(
    candidate: Annotated[
        str,
        typer.Argument(
            autocompletion=trial_names, metavar="CANDIDATE", help="Name or id of the trial with the finding."
        ),
    ],
    control: Annotated[
        str | None,
        typer.Option("--control", metavar="CONTROL", help="Default: the control it was recorded against."),
    ] = None,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="The script.")] = Path("repro.py"),
    no_check: Annotated[bool, typer.Option("--no-check", help="Write it and do not run it.")] = False,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="End one of its runs after this time.")] = 300.0,
    store: StoreOption = None,
) -> None:
    """Write a script that shows a trial's first finding elsewhere, with synthetic inputs, and run it to see.

    It holds the sources that ran (read it before you send it), both commands, and of the inputs a description: shapes,
    dtypes, ranges, padding. None of the data. It needs torch and ddparity, and shows what does not depend on the data.

    Exit code: 0 it shows the finding, 3 it does not or cannot, 2 there is nothing to make it from, 4 the control fails.
    """
    from ddparity.repro import ReproOptions, make_repro
    from ddparity.trials import Store, read_facts

    if candidate.endswith(".zip"):
        raise UsageError(
            f"{candidate!r} is a bundle, without sources. Whoever recorded it makes the script: ddparity repro TRIAL"
        )
    trials = Store.resolve(store)
    folder = trials.find(candidate)
    against = control or read_facts(folder).against
    if against is None:
        raise UsageError(
            f"{candidate!r} was recorded before there was a control of its script. Name one: --control NAME"
        )
    options = ReproOptions(
        control=trials.find(against), candidate=folder, output=output, check=not no_check, timeout_s=timeout
    )
    with Busy("making the reproduction") as busy:
        product = make_repro(options, busy.say)
    for note in product.notes:
        say(f"note: {note}")
    say(f"{output}: {product.case.expected}")
    if product.code is None:
        say(f"not checked. Run it: python {output}")
        raise typer.Exit(ExitCode.PASS)
    raise typer.Exit(_tell(product.code, product.said, output, is_made_up=product.case.is_made_up))


def _tell(code: int, said: str, output: Path, *, is_made_up: bool) -> ExitCode:
    if code == ExitCode.DEVIATES:
        inputs = "with inputs that are made up" if is_made_up else "with the inputs that the script makes itself"
        say(f"reproduces {inputs}: {said.removeprefix('reproduced: ')}")
        say(f"next: read {output}, then send it. Elsewhere: python {output}")
        return ExitCode.PASS
    if code == ExitCode.PASS:
        why = "the finding depends on the data" if is_made_up else "it does not show every time"
        say(f"does not reproduce: {why} ({said})")
    else:
        say(f"{'' if said.startswith('cannot') else 'cannot: '}{said}")
    say("next: ddparity bundle TRIAL -o case.zip holds the evidence itself, and nothing of the data")
    return ExitCode.INCONCLUSIVE
