"""``ddparity data``: which process got which sample, when, and in which form."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ddparity._errors import CommandFailed, TrialNotFound, UsageError, exit_code_of
from ddparity.cli._busy import Busy
from ddparity.cli._options import StoreOption
from ddparity.cli._output import emit, emit_json, say

if TYPE_CHECKING:
    from ddparity.trials import Store


def data(
    command: Annotated[
        list[str], typer.Argument(metavar="TRIAL | -- COMMAND", help="A recorded trial, or the training command.")
    ],
    store: StoreOption = None,
    epochs: Annotated[int, typer.Option(metavar="N", min=1, help="Passes over the training data to look at.")] = 2,
    dry: Annotated[
        bool, typer.Option("--dry", help="Train one batch, then only run the loaders out: one pass, no order.")
    ] = False,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="Name of the trial. Default: SCRIPT-data.")] = None,
    timeout: Annotated[float | None, typer.Option(metavar="SECONDS", help="End the command after this time.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
    html: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Also write an HTML page.")] = None,
) -> None:
    """Audit the data of a run: shares of ranks and workers, coverage, order of epochs, batches, splits, random streams.

    Runs the command until its training loaders came to their end --epochs times, or reads a trial that is there:
    ddparity data -- torchrun --nproc-per-node 2 train.py, or ddparity data NAME

    Exit code: 1 if an audit deviates, 3 if none could be settled, else 0; 4 if the command recorded nothing.
    """
    from ddparity.trials import Store

    trials = Store.resolve(store)
    folder = _recorded(trials, command) or _record(trials, command, epochs, name, timeout, dry=dry, quiet=as_json)

    from ddparity.judge import report_data
    from ddparity.report import render_data, render_data_html

    with Busy("auditing what the loaders gave"):
        report = report_data(folder)
    if html is not None:
        try:
            html.write_text(render_data_html(report), encoding="utf-8")
        except OSError as error:
            raise UsageError(
                f"--html {str(html)!r} cannot be written ({error.strerror}). Name another file."
            ) from error
    if as_json:
        emit_json(report)
    else:
        emit(render_data(report).rstrip("\n"))
    raise typer.Exit(exit_code_of(report.status))


def _recorded(store: "Store", command: list[str]) -> Path | None:
    """Return the folder of the trial that a single word names, or None if there is none of that name."""
    if len(command) != 1:
        return None
    try:
        return store.find(command[0])
    except TrialNotFound:
        import shutil

        if shutil.which(command[0]) is None:
            raise
        return None


def _record(
    store: "Store", command: list[str], epochs: int, name: str | None, timeout: float | None, *, dry: bool, quiet: bool
) -> Path:
    from ddparity.trials import RecordSpec, outcome, rank_folders, record, uninterrupted

    script = next((each for each in command if each.endswith(".py")), command[0])
    stem = re.sub(r"[^A-Za-z0-9_-]+", "-", Path(script).stem)[:50].strip("-") or "trial"
    spec = RecordSpec(
        command=command,
        store=store,
        name=name or f"{stem}-data",
        level="gradients",
        steps="1",
        timeout_s=timeout,
        loader_epochs=epochs,
        loaders_only=dry,
        quiet=quiet,
    )
    with Busy("running the command", show=quiet):
        facts = uninterrupted(record(spec))
    folder = store.path(facts.id)
    if not rank_folders(folder):
        reason = f"{outcome(facts)}, and nothing was recorded"
        raise CommandFailed(f"The command ended with {reason}. Run it without ddparity first. See: ddparity doctor")
    say(f"{facts.id}: {facts.status.value}, audited all the same" if facts.exit_code else f"{facts.id}: recorded")
    return folder
