"""Trials in TensorBoard and MLflow, read back with their own packages."""

import json
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

import msgspec
import pytest
from typer.testing import CliRunner

from ddparity.cli._app import build
from ddparity.integrations import _history
from ddparity.integrations import mlflow as to_mlflow
from ddparity.judge import compare_trials
from ddparity.report import render_json
from ddparity.trace import TrialFacts
from ddparity.trials import Ledger, Store
from synthetic import Fault, Training, as_control, write_trial

SECRET = "sk-live-0123456789abcdefghij"
RUNNER = CliRunner()
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A control, a faulty candidate with its comparison, and one that was never compared."""
    store = Store(tmp_path_factory.mktemp("export") / "store")
    training = Training(world_size=2, clip=1.0, faults=(Fault(kind="summed", names=("2.weight",), step=1),))
    ids = [f"20260101-00000000{n}-{name}-{n}abc" for n, name in enumerate(("alone", "two", "other"))]
    for name, made in zip(ids, (as_control(training), training, replace(training, faults=())), strict=True):
        folder = write_trial(made, store.path(name), name=name)
        facts = msgspec.json.decode((folder / "trial.json").read_bytes(), type=TrialFacts)
        facts.name, facts.cwd = name.split("-")[2], "/home/somebody/project"
        facts.command = ["python", "/home/somebody/project/train.py", "--api-key", SECRET]
        facts.started, facts.ended = 1_700_000_000.0, 1_700_000_060.0
        (folder / "trial.json").write_bytes(msgspec.json.encode(facts))
        ranks = [json.loads(path.read_text()) for path in folder.glob("rank-*/rank.json")]
        for rank, path in zip(ranks, folder.glob("rank-*/rank.json"), strict=True):
            path.write_text(json.dumps(rank | {"hostname": "gpubox17", "hyperparameters": {"lr": 0.05}}))
    verdict = compare_trials(store.path(ids[0]), store.path(ids[1]))
    with Ledger(store) as ledger:
        ledger.put_comparison(
            control=ids[0], candidate=ids[1], status=verdict.exit_status().value, verdict=render_json(verdict)
        )
    return store


def call(*words):
    return RUNNER.invoke(build(), ["export", *words])


def read_events(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder))
    found.Reload()
    return found


def test_tensorboard_reads_numbers_by_rank_and_the_verdict(store, tmp_path):
    done = call("tensorboard", "two", "alone", "--to", str(tmp_path), "--store", str(store.root))
    assert done.exit_code == 0, done.output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["alone-0abc", "two-1abc"]
    exported = _history.read_export(store, "two")
    for rank in (0, 1):
        events = read_events(tmp_path / "two-1abc" / f"rank-{rank:05d}")
        for name in ("loss", "learning_rate", "grad_norm"):
            wanted = [(p.step, p.value) for p in exported.points if (p.rank, p.name) == (rank, name)]
            got = [(event.step, event.value) for event in events.Scalars(name)]
            assert len(got) == 3
            assert got == [(step, pytest.approx(value, rel=1e-6)) for step, value in wanted]
    text = read_events(tmp_path / "two-1abc").Tensors("verdict")[0].tensor_proto.string_val[0].decode()
    assert "| numerics | DEVIATES |" in text
    assert "2.weight" in text
    assert "verdict" not in read_events(tmp_path / "alone-0abc").Tags()["tensors"]


def test_exporting_again_replaces_the_files(store, tmp_path):
    for _ in range(2):
        assert call("tensorboard", "two", "--to", str(tmp_path), "--store", str(store.root)).exit_code == 0
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == 3
    assert len(read_events(tmp_path / "two-1abc" / "rank-00000").Scalars("loss")) == 3


def test_what_leaves_names_nobody(store, tmp_path):
    call("tensorboard", "two", "--to", str(tmp_path), "--store", str(store.root))
    exported = _history.read_export(store, "two")
    content = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    content += msgspec.json.encode(exported.settings) + exported.report.encode()
    content += " ".join(str(path) for path in tmp_path.rglob("*")).encode().replace(str(tmp_path).encode(), b"")
    for word in (SECRET, "somebody", "gpubox17", socket.gethostname()):
        assert word.encode() not in content
    assert b"<SECRET>" in content
    assert b"loss" in content


@pytest.mark.slow
def test_mlflow_reads_metrics_facts_verdicts_and_the_report(store, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.chdir(tmp_path)
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    words = ["--tracking-uri", uri, "--store", str(store.root), "--json"]
    done = call("mlflow", "two", *words)
    assert done.exit_code == 0, done.output
    (row,) = json.loads(done.stdout)["exported"]
    assert (row["new"], row["ranks"], row["verdict"]) == (True, 2, "DEVIATES")
    client = mlflow.MlflowClient(tracking_uri=uri)
    run = client.get_run(row["run_id"])
    assert (run.info.run_name, run.info.status) == ("two", "FINISHED")
    assert (run.info.start_time, run.info.end_time) == (1_700_000_000_000, 1_700_000_060_000)
    assert run.data.tags["ddparity.numerics"] == "DEVIATES"
    assert run.data.tags["ddparity.verdict"] == "DEVIATES"
    assert "2.weight" in run.data.tags["ddparity.first_deviation"]
    assert run.data.params["world_size"] == "2"
    assert run.data.params["hyperparameter:lr"] == "0.05"
    assert SECRET not in json.dumps(run.data.params)
    history = client.get_metric_history(row["run_id"], "loss/rank_1")
    points = [p for p in _history.read_export(store, "two").points if (p.rank, p.name) == (1, "loss")]
    assert [(m.step, m.value) for m in history] == [(p.step, p.value) for p in points]
    files = {file.path for file in client.list_artifacts(row["run_id"], "ddparity")}
    assert files == {"ddparity/report.html", "ddparity/verdict.json"}
    # Not `download_artifacts`: its threads stay until the interpreter ends.
    folder = url2pathname(urlsplit(run.info.artifact_uri).path)
    report = Path(folder, "ddparity", "report.html").read_text()
    assert "2.weight" in report
    assert "somebody" not in report

    (again,) = json.loads(call("mlflow", "two", *words).stdout)["exported"]
    assert (again["run_id"], again["new"]) == (row["run_id"], False)
    assert len(client.get_metric_history(row["run_id"], "loss/rank_1")) == 3
    assert "MLFLOW_DISABLE_TELEMETRY" not in os.environ


def test_a_trial_without_a_verdict_says_how_to_get_one(store, tmp_path):
    done = call("tensorboard", "other", "--to", str(tmp_path), "--store", str(store.root))
    assert done.exit_code == 0
    assert "ddparity compare CONTROL other" in done.stderr


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("metric/val acc@5/rank_0", "metric/val acc_5/rank_0"),
        ("/a//b/../c", "a/b/c"),
        ("...", "_"),
        ("x" * 400, "x" * 250),
    ],
)
def test_names_become_what_mlflow_takes(name, expected):
    assert to_mlflow.key(name) == expected


@pytest.mark.parametrize(("kind", "package"), [("tensorboard", "tensorboard"), ("mlflow", "mlflow-skinny")])
def test_a_missing_package_names_the_command_that_installs_it(store, tmp_path, kind, package):
    code = f"import sys; sys.modules[{kind!r}] = None\nfrom ddparity.cli import main\n"
    code += f"sys.argv = ['ddparity', 'export', {kind!r}, 'two', '--store', {str(store.root)!r}]\nmain()"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert f"pip install {package}" in done.stderr
