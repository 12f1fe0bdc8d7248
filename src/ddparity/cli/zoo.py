"""``ddparity zoo run``: record and judge scripts whose faults are known, and score the answers."""

import contextlib
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Annotated

import typer

from ddparity._errors import ExitCode
from ddparity._plain import plain
from ddparity.cli._output import emit, emit_json, say, table
from ddparity.cli._scratch import KeepOption, kept_or_thrown_away
from ddparity.trials._scoring import Outcome, all_well, summarise
from ddparity.trials._zoo import ZooOptions, find_zoo, read_manifest, run_rows, select

app = typer.Typer(
    help="Faulty training scripts with the right verdict for each.", no_args_is_help=True, rich_markup_mode=None
)


@app.callback()
def _group() -> None:
    """Faulty training scripts with the right verdict for each."""


@app.command()
def run(
    names: Annotated[list[str] | None, typer.Argument(metavar="NAME", help="Rows to run; all when none.")] = None,
    zoo: Annotated[
        Path | None, typer.Option("--zoo", metavar="DIR", help="Folder of manifest.jsonl and the scripts.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
    store: KeepOption = None,
    layer: Annotated[str | None, typer.Option(metavar="LAYER", help="Only the rows of this layer.")] = None,
    parallelism: Annotated[
        str | None, typer.Option(metavar="PARALLELISM", help="Only the rows of this parallelism.")
    ] = None,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", min=1.0, help="Time that one run may take.")] = 120.0,
    dtype: Annotated[
        str | None, typer.Option(metavar="DTYPE", help="float64: promote every run, control and candidates alike.")
    ] = None,
    jobs: Annotated[int, typer.Option(metavar="N", min=1, help="Rows that run at the same time.")] = 1,
) -> None:
    """Record control, clean and faulty run of each row, judge them, and score what the judge said.

    Exit code 0: every fault detected, every clean run passes, no false alarm; otherwise 1.
    """
    folder = find_zoo(zoo)
    rows = select(read_manifest(folder), names or [], layer=layer, parallelism=parallelism)
    with kept_or_thrown_away(store) as kept:
        options = ZooOptions(folder=folder, store=kept, timeout_s=timeout, jobs=jobs, dtype=dtype)
        with _progress(len(rows)) as advance:
            outcomes = run_rows(rows, options, advance)
    for outcome in outcomes:
        for error in outcome.errors:
            say(f"{outcome.row.name}: {error}")
    if as_json:
        emit_json(summarise(outcomes))
    else:
        emit(_text(outcomes))
    raise typer.Exit(ExitCode.PASS if all_well(outcomes) else ExitCode.DEVIATES)


@contextlib.contextmanager
def _progress(total: int) -> Generator[Callable[[Outcome], None]]:
    """Show on standard error, where that is a terminal, how many rows are done."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=total)
        yield lambda outcome: progress.update(task, advance=1, description=f"last: {outcome.row.name}")


def _text(outcomes: list[Outcome]) -> str:
    heads = ("ROW", "CLEAN RUN", "DETECTED", "LOCATED", "SECONDS", "FIRST FINDING")
    totals = summarise(outcomes)
    return (
        f"{table(heads, [_cells(outcome) for outcome in outcomes])}\n\n"
        f"detected {totals.detected}, located {totals.located}, false alarms {totals.false_alarms}"
    )


def _cells(outcome: Outcome) -> list[str]:
    score = outcome.score
    located = "-" if score.located is None else _mark(score.located)
    marks = [_mark(score.clean_pass), _mark(score.detected), located]
    return [score.name, *marks, f"{score.seconds:.1f}", plain(_finding(outcome))]


def _mark(good: bool) -> str:
    return "✓ yes" if good else "✗ no"


def _finding(outcome: Outcome) -> str:
    """Describe the finding, or say why there is none."""
    first = outcome.score.first_finding
    if first is not None:
        step = "" if first["step"] is None else f"step {first['step']} "
        return f"{step}{first['phase']} {first['name']} ({first['cause']['code']})"
    if outcome.faulty is None:
        return "could not be judged"
    return "none, as it should be" if outcome.row.benign else "none"
