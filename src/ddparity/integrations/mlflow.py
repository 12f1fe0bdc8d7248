"""A trial as a run of MLflow: metrics by rank and step, facts as parameters, the four verdicts as tags, the report."""

import contextlib
import os
import re
from collections.abc import Generator, Iterator, Sequence
from importlib import import_module
from typing import Any, NamedTuple, TypeVar

import msgspec

from ddparity._errors import UsageError
from ddparity.integrations._history import Export, Point
from ddparity.integrations._missing import missing
from ddparity.report import render_json
from ddparity.trace import TrialStatus

EXPERIMENT = "ddparity"
TRIAL_TAG = "ddparity.trial"
_MAX_METRICS, _MAX_PARAMS = 1000, 100
"""What MLflow takes in one call."""
_MAX_TEXT = 5000
_TELEMETRY = "MLFLOW_DISABLE_TELEMETRY"
_UNUSABLE = re.compile(r"[^\w\-. :/]", re.ASCII)
_STATUS = {TrialStatus.COMPLETED: "FINISHED", TrialStatus.RUNNING: "RUNNING", TrialStatus.INTERRUPTED: "KILLED"}

T = TypeVar("T")


class Written(NamedTuple):
    """Where a trial is in MLflow now."""

    run_id: str
    experiment_id: str
    is_new: bool
    """False where the run was there and got the newest verdict only."""


def export(exported: Export, tracking_uri: str | None = None, experiment: str = EXPERIMENT) -> Written:
    """Write a trial as a run; one that was exported before gets the newest verdict and report.

    Args:
        exported: The trial.
        tracking_uri: Where MLflow keeps its runs; by default what MLflow itself takes (``MLFLOW_TRACKING_URI``).
        experiment: Name of the experiment, which is made where there is none.

    Raises:
        DependencyMissing: If MLflow, or what it needs for this kind of URI, is not installed.
        UsageError: If MLflow refuses.
    """
    with _without_telemetry():
        try:
            mlflow = import_module("mlflow")
        except ImportError as error:
            raise missing("mlflow-skinny", error) from error
        try:
            return _Exporter(mlflow, tracking_uri).write(exported, experiment)
        except ModuleNotFoundError as error:  # a database needs SQLAlchemy, and Alembic
            raise missing(error.name or "sqlalchemy", error) from error
        except mlflow.exceptions.MlflowException as error:
            uri = tracking_uri or mlflow.get_tracking_uri()
            raise UsageError(f"MLflow refused, at {uri!r}: {error}. Name another place with --tracking-uri.") from error


@contextlib.contextmanager
def _without_telemetry() -> Generator[None]:
    """Keep MLflow from reporting its use to its makers: ddparity talks to nobody whom the user did not name."""
    before = os.environ.get(_TELEMETRY)
    os.environ[_TELEMETRY] = "true"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_TELEMETRY]
        else:
            os.environ[_TELEMETRY] = before


class _Exporter:
    def __init__(self, mlflow: Any, tracking_uri: str | None) -> None:
        self.mlflow = mlflow
        self.client = mlflow.MlflowClient(tracking_uri=tracking_uri)

    def write(self, exported: Export, experiment: str) -> Written:
        known = self.client.get_experiment_by_name(experiment)
        number = known.experiment_id if known else self.client.create_experiment(experiment)
        run = self._known(number, exported)
        is_new = run is None
        if run is None:
            run = self._create(number, exported)
        run_id = run.info.run_id
        self._verdict(run_id, exported)
        if is_new and exported.facts.status is not TrialStatus.RUNNING:
            end = None if exported.facts.ended is None else int(exported.facts.ended * 1000)
            self.client.set_terminated(run_id, _STATUS.get(exported.facts.status, "FAILED"), end)
        return Written(run_id, number, is_new)

    def _known(self, experiment: str, exported: Export) -> Any:
        """Return the run of this trial; one that was exported while the trial still ran is left behind, deleted."""
        there = self.client.search_runs([experiment], f"tags.`{TRIAL_TAG}` = '{exported.facts.id}'")
        for run in there:
            if run.info.status != "RUNNING":
                return run
            self.client.delete_run(run.info.run_id)
        return None

    def _create(self, experiment: str, exported: Export) -> Any:
        facts = exported.facts
        run = self.client.create_run(
            experiment,
            start_time=int(facts.started * 1000),
            tags={TRIAL_TAG: facts.id, "ddparity.control": str(facts.control).lower()},
            run_name=facts.name,
        )
        entities = self.mlflow.entities
        params = [entities.Param(key(name), _shown(value)) for name, value in exported.settings.items()]
        for some in _portions(params, _MAX_PARAMS):
            self.client.log_batch(run.info.run_id, params=some)
        metrics = [_metric(entities, point) for point in exported.points]
        for some in _portions(metrics, _MAX_METRICS):
            self.client.log_batch(run.info.run_id, metrics=some)
        return run

    def _verdict(self, run_id: str, exported: Export) -> None:
        verdict = exported.verdict
        if verdict is None:
            return
        tags = {f"ddparity.{name}": layer.status.value for name, layer in verdict.layers.items()}
        tags |= {"ddparity.verdict": verdict.exit_status().value, "ddparity.against": verdict.control}
        first = verdict.first()
        tags["ddparity.first_deviation"] = (
            f"step {first.step}, {first.phase}, {first.name} [{first.cause.code}]" if first is not None else "none"
        )
        tags["mlflow.note.content"] = _note(exported)
        for name, value in tags.items():
            self.client.set_tag(run_id, name, value[:_MAX_TEXT])
        self.client.log_text(run_id, exported.report, "ddparity/report.html")
        self.client.log_text(run_id, render_json(verdict), "ddparity/verdict.json")


def key(name: str) -> str:
    """Return a name as MLflow takes it: some characters, no empty part between slashes, at most 250."""
    parts = [part for part in _UNUSABLE.sub("_", name).split("/") if part.strip(". ")]
    return "/".join(parts)[:250] or "_"


def _metric(entities: Any, point: Point) -> Any:
    return entities.Metric(key(f"{point.name}/rank_{point.rank}"), point.value, point.time_ns // 1_000_000, point.step)


def _portions(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


def _note(exported: Export) -> str:
    verdict = exported.verdict
    assert verdict is not None
    lines = [f"* {name}: **{layer.status.value}** {layer.reason}" for name, layer in verdict.layers.items()]
    return "\n".join([f"Held against `{verdict.control}`:", "", *lines])


def _shown(value: Any) -> str:
    return (value if isinstance(value, str) else msgspec.json.encode(value).decode())[:_MAX_TEXT]
