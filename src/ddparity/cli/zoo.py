"""``ddparity zoo run``: record and judge scripts whose faults are known, and score the answers."""

import contextlib
import json
import sys
import tempfile
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from ddparity._errors import ExitCode
from ddparity.trials import Store
from ddparity.trials._scoring import Outcome, all_well, summarise
from ddparity.trials._zoo import ZooOptions, find_zoo, read_manifest, run_rows, select

app = typer.Typer(help="Faulty training scripts with the right verdict for each.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Faulty training scripts with the right verdict for each."""


@app.command()
def run(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="Rows to run; all when none.")] = None,
    zoo: Annotated[
        Path | None, typer.Option("--zoo", metavar="DIR", help="Folder of manifest.jsonl and the scripts.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
    store: Annotated[
        str | None, typer.Option(metavar="STORE", help="Keep the trials in this store; otherwise they are thrown away.")
    ] = None,
    layer: Annotated[str | None, typer.Option(metavar="LAYER", help="Only the rows of this layer.")] = None,
    parallelism: Annotated[
        str | None, typer.Option(metavar="PARALLELISM", help="Only the rows of this parallelism.")
    ] = None,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", min=1.0, help="Time that one run may take.")] = 120.0,
    jobs: Annotated[int, typer.Option(metavar="N", min=1, help="Rows that run at the same time.")] = 1,
) -> None:
    """Record control, clean and faulty run of each row, judge them, and score what the judge said.

    Exit code 0: every fault detected, every clean run passes, no false alarm; otherwise 1.
    """
    folder = find_zoo(zoo)
    rows = select(read_manifest(folder), names or [], layer=layer, parallelism=parallelism)
    with _kept_or_thrown_away(store) as kept:
        options = ZooOptions(folder=folder, store=kept, timeout_s=timeout, jobs=jobs)
        with _progress(len(rows)) as advance:
            outcomes = run_rows(rows, options, advance)
    for outcome in outcomes:
        for error in outcome.errors:
            print(f"ddparity: {outcome.row.name}: {error}", file=sys.stderr)
    if as_json:
        print(json.dumps(summarise(outcomes)))
    else:
        _show(outcomes)
    raise typer.Exit(ExitCode.PASS if all_well(outcomes) else ExitCode.DEVIATES)


@contextlib.contextmanager
def _kept_or_thrown_away(store: str | None) -> Generator[Store]:
    if store is not None:
        yield Store.resolve(store)
        return
    with tempfile.TemporaryDirectory(prefix="ddparity-zoo-", ignore_cleanup_errors=True) as folder:
        yield Store(Path(folder))


@contextlib.contextmanager
def _progress(total: int) -> Generator[Callable[[Outcome], None]]:
    """Show on standard error, where that is a terminal, how many rows are done."""
    console = Console(stderr=True)
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=total)

        def advance(outcome: Outcome) -> None:
            progress.update(task, advance=1, description=f"last: {outcome.row.name}")

        yield advance


def _show(outcomes: list[Outcome]) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("row", "clean", "detected", "located", "first finding"):
        table.add_column(heading, overflow="fold")
    table.add_column("seconds", justify="right")
    for outcome in outcomes:
        score = outcome.score
        table.add_row(
            Text(score.name),
            _mark(score.clean_pass),
            _mark(score.detected),
            Text("-") if score.located is None else _mark(score.located),
            Text(_finding(outcome)),
            f"{score.seconds:.1f}",
        )
    totals = summarise(outcomes)
    console = Console(soft_wrap=False)
    console.print(table)
    console.print(
        f"detected {totals['detected']}, located {totals['located']}, false alarms {totals['false_alarms']}",
        highlight=False,
    )


def _mark(good: bool) -> Text:
    return Text("✓ yes", style="green") if good else Text("✗ no", style="red")


def _finding(outcome: Outcome) -> str:
    """Describe the finding, or say why there is none."""
    first = outcome.score.first_finding
    if first is not None:
        step = "" if first["step"] is None else f"step {first['step']} "
        return f"{step}{first['phase']} {first['name']} ({first['cause']['code']})"
    if outcome.faulty is None:
        return "could not be judged"
    return "none, as it should be" if outcome.row.benign else "none"
