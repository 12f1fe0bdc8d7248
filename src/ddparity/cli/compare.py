"""``ddparity compare``: hold a candidate against a control."""

import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ddparity._errors import UsageError, exit_code_of
from ddparity.cli._busy import Busy
from ddparity.cli._options import StoreOption, trial_names
from ddparity.cli._output import emit, say

if TYPE_CHECKING:
    from ddparity.judge import Verdict
    from ddparity.trials import Store


def compare(
    control: Annotated[
        str, typer.Argument(autocompletion=trial_names, metavar="CONTROL", help="Name or id of the control.")
    ],
    candidate: Annotated[
        str, typer.Argument(autocompletion=trial_names, metavar="CANDIDATE", help="Name or id of the trial to judge.")
    ],
    store: StoreOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
    html: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Also write an HTML page.")] = None,
    allow_stale: Annotated[
        bool, typer.Option("--allow-stale", help="Judge although the code changed since; the verdict notes it.")
    ] = False,
    save: Annotated[bool, typer.Option("--save/--no-save", help="Keep the verdict in the store.")] = True,
) -> None:
    """Hold a candidate against a control, and say where they first deviate.

    Each of the four layers is judged on its own. A name means the newest trial of that name.

    Exit code: 1 if a layer deviates, else 3 if one is inconclusive, else 0; layers that were not tested do not count.
    2 if the control is stale: the code changed since it was recorded.
    """
    from ddparity.trials import Store

    trials = Store.resolve(store)
    folders = trials.find(control), trials.find(candidate)

    from ddparity.judge import compare_and_measure, compare_trials
    from ddparity.report import render_html, render_json, render_text

    with Busy(f"holding {candidate} against {control}"):
        if html is None:
            verdict, pictures = compare_trials(*folders, allow_stale=allow_stale), None
        else:
            measured = compare_and_measure(*folders, allow_stale=allow_stale)
            verdict, pictures = measured.verdict, measured.pictures
    document = render_json(verdict)
    if save:
        _save(trials, verdict, document)
    if html is not None:
        _write(html, render_html(verdict, pictures))
    emit(document if as_json else render_text(verdict).rstrip("\n"))
    raise typer.Exit(exit_code_of(verdict.exit_status()))


def _save(store: "Store", verdict: "Verdict", document: str) -> None:
    from ddparity.trials import Ledger

    status = verdict.exit_status().value
    try:
        with Ledger(store) as ledger:
            ledger.put_comparison(control=verdict.control, candidate=verdict.candidate, status=status, verdict=document)
    except (OSError, sqlite3.Error) as error:  # a store on a read-only disk can be judged all the same
        say(f"the verdict was not kept in the store ({error}); --no-save does not try")


def _write(path: Path, page: str) -> None:
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--html {str(path)!r} cannot be written ({error.strerror}). Name another file.") from error
