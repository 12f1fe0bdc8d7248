"""``ddparity export``: the numbers and the verdict of trials, for TensorBoard or MLflow."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ddparity.cli._options import StoreOption, trial_names
from ddparity.cli._output import emit_json, say

if TYPE_CHECKING:
    from ddparity.integrations._history import Export

app = typer.Typer(
    help="Metrics and verdicts of trials, for TensorBoard or MLflow.", no_args_is_help=True, rich_markup_mode=None
)

TrialsArgument = Annotated[
    list[str], typer.Argument(autocompletion=trial_names, metavar="TRIAL...", help="Names or ids of trials.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]


@app.callback()
def _group() -> None:
    """Metrics and verdicts of trials, for TensorBoard or MLflow."""


@app.command()
def tensorboard(
    trials: TrialsArgument,
    to: Annotated[Path, typer.Option("--to", metavar="FOLDER", help="The folder for tensorboard --logdir.")] = Path(
        "runs"
    ),
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write trials as TensorBoard event files.

    A run a rank: losses, metrics, learning rates, memory, times. The verdict of the last comparison and the facts stand
    in the tab "Text". Exporting a trial again replaces its files.

    Needs TensorBoard: pip install 'ddparity[tensorboard]'
    """
    from ddparity.integrations import tensorboard as target

    rows = []
    for exported in _read(trials, store):
        folder = target.export(exported, to)
        rows.append({"trial": exported.facts.id, "folder": str(folder)} | _counts(exported))
        _tell(str(folder), exported, quiet=as_json)
    if as_json:
        emit_json({"schema": 1, "exported": rows})
    else:
        say(f"next: tensorboard --logdir {to}")


@app.command()
def mlflow(
    trials: TrialsArgument,
    tracking_uri: Annotated[
        str | None,
        typer.Option(metavar="URI", help="Where MLflow keeps runs. Default: MLflow's own, $MLFLOW_TRACKING_URI."),
    ] = None,
    experiment: Annotated[str, typer.Option(metavar="NAME", help="The experiment that the runs go to.")] = "ddparity",
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write each trial as a run of MLflow.

    Metrics by rank and step, facts, the four verdicts of the last comparison as tags, the HTML report. A trial that is
    there already gets the newest verdict and report.

    Needs MLflow: pip install 'ddparity[mlflow]'
    """
    from ddparity.integrations import mlflow as target

    rows = []
    for exported in _read(trials, store):
        written = target.export(exported, tracking_uri, experiment)
        row = {"trial": exported.facts.id, "run_id": written.run_id, "experiment_id": written.experiment_id}
        rows.append(row | {"new": written.is_new} | _counts(exported))
        what = f"run {written.run_id} of experiment {experiment!r}"
        _tell(what if written.is_new else f"{what}, the newest verdict only", exported, quiet=as_json)
    if as_json:
        emit_json({"schema": 1, "exported": rows})


def _read(trials: list[str], store: str | None) -> "list[Export]":
    from ddparity.integrations._history import read_export
    from ddparity.trials import Store

    found = Store.resolve(store)
    return [read_export(found, name) for name in trials]


def _counts(exported: "Export") -> dict[str, object]:
    verdict = exported.verdict
    return {
        "ranks": len(exported.ranks),
        "numbers": len(exported.points),
        "verdict": None if verdict is None else verdict.exit_status().value,
    }


def _tell(where: str, exported: "Export", *, quiet: bool) -> None:
    if quiet:
        return
    ranks = len(exported.ranks)
    say(f"{where}: {len(exported.points)} numbers of {ranks} rank{'' if ranks == 1 else 's'}")
    if exported.verdict is not None:
        say(f"with the verdict against {exported.verdict.control}: {exported.verdict.exit_status().value}")
    elif not exported.facts.control:
        say(f"without a verdict: hold it against a control first, ddparity compare CONTROL {exported.facts.name}")
