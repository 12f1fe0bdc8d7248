"""From an unmodified script to a verdict, through the command line alone: one device, real recordings."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ddparity._errors import ExitCode
from ddparity.judge import Status, compare_trials
from ddparity.trials import Store

pytestmark = pytest.mark.timeout(180)
SCRIPT = """\
import argparse
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--seed", type=int, default=0)
arguments = parser.parse_args()
torch.manual_seed(arguments.seed if arguments.seed >= 0 else torch.seed() % 2**31)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=arguments.lr)
inputs, targets = torch.randn(16, 4), torch.randint(0, 2, (16,))
for _ in range(3):
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(inputs), targets).backward()
    optimizer.step()
"""


def ddparity(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("ddparity")), *arguments]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=150, check=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a proved control, a run that is the same, and one with another learning rate."""
    folder = tmp_path_factory.mktemp("compare")
    (folder / "train.py").write_text(SCRIPT)
    done = ddparity(folder, "record", "--control", "--name", "single", "--", sys.executable, "train.py")
    assert done.returncode == ExitCode.PASS, done.stderr
    assert "ddparity: control PROVED" in done.stderr
    assert ddparity(folder, "record", "--name", "same", "--", sys.executable, "train.py").returncode == ExitCode.PASS
    done = ddparity(folder, "record", "--name", "fast", "--", sys.executable, "train.py", "--lr", "0.2")
    assert "ddparity: next: ddparity compare single fast" in done.stderr
    return folder


def test_a_control_is_run_twice_and_the_proof_is_kept(folder):
    store = Store(folder / ".ddparity")
    facts = next(facts for facts in store.trials() if facts.name == "single")
    assert facts.proof is not None
    assert facts.proof.status == "PROVED"
    assert store.find("single.repeat").name == facts.proof.repeat
    assert "control   PROVED" in ddparity(folder, "trials", "show", "single").stdout


def test_the_same_run_passes(folder):
    done = ddparity(folder, "compare", "single", "same")
    assert done.returncode == ExitCode.PASS, done.stdout
    assert "✓ PASS          numerics" in done.stdout
    assert "–" in done.stdout and "NOT TESTED" in done.stdout  # noqa: PT018, RUF001
    assert done.stderr == ""


def test_another_learning_rate_deviates(folder):
    done = ddparity(folder, "compare", "single", "fast")
    assert done.returncode == ExitCode.DEVIATES, done.stdout
    assert "✗ DEVIATES      numerics" in done.stdout
    assert re.search(r"^  at +step 0, optimizer: .* of lr$", done.stdout, re.MULTILINE)
    assert re.search(r"^  next +\S", done.stdout, re.MULTILINE)


def test_json_is_one_document_of_the_contract(folder):
    done = ddparity(folder, "compare", "single", "fast", "--json")
    assert done.returncode == ExitCode.DEVIATES
    document = json.loads(done.stdout)
    assert set(document["layers"]) == {"numerics", "data", "memory", "communication"}
    assert document["schema"] == 1
    assert document["layers"]["numerics"]["status"] == "DEVIATES"
    assert Store(folder / ".ddparity").find("fast").name == document["candidate"]
    first = next(each for each in document["findings"] if each["follows"] is None)
    assert (first["name"], first["step"], first["phase"]) == ("lr", 0, "optimizer")
    assert "merge_plan" in document


def test_html_is_written_beside_the_answer(folder):
    done = ddparity(folder, "compare", "single", "fast", "--html", "report.html")
    assert done.returncode == ExitCode.DEVIATES
    assert (folder / "report.html").read_text().startswith("<!doctype html>")
    done = ddparity(folder, "compare", "single", "fast", "--html", "no/such/report.html")
    assert done.returncode == ExitCode.USAGE
    assert "--html 'no/such/report.html' cannot be written (No such file or directory)" in done.stderr


def test_a_verdict_is_kept_unless_it_is_not_wanted(folder):
    def kept() -> int:
        return len(json.loads(ddparity(folder, "trials", "show", "same", "--json").stdout)["comparisons"])

    before = kept()
    ddparity(folder, "compare", "single", "same", "--no-save")
    assert kept() == before
    ddparity(folder, "compare", "single", "same")
    assert kept() == before + 1


def test_a_control_that_does_not_repeat_itself_is_no_control(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    done = ddparity(tmp_path, "record", "--control", "--", sys.executable, "train.py", "--seed", "-1")
    assert done.returncode == ExitCode.INCONCLUSIVE, done.stderr
    assert "ddparity: control FAILED: " in done.stderr


@pytest.mark.slow
def test_a_metric_of_models_that_have_parted_is_no_finding_about_the_data(recorded, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    digits = ["-m", "ddparity.workloads.digits", "--steps", "6"]
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    control = recorded("parted.single", [sys.executable, *digits])
    candidate = recorded("parted.unsynced", [sys.executable, *launcher, *digits, "--fault", "unsynced"])
    verdict = compare_trials(recorded.store.path(control.id), recorded.store.path(candidate.id))
    assert verdict.layers["numerics"].status is Status.DEVIATES
    assert verdict.layers["data"].status is Status.PASS, verdict.layers["data"].reason


def test_one_rank_under_a_launcher_has_nobody_to_disagree_with(recorded, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    digits = ["-m", "ddparity.workloads.digits", "--steps", "6"]
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1"]
    control = recorded("parted.single", [sys.executable, *digits])
    alone = recorded("parted.alone", [sys.executable, *launcher, *digits])
    verdict = compare_trials(recorded.store.path(control.id), recorded.store.path(alone.id))
    assert verdict.layers["communication"].status is Status.NOT_TESTED
    assert verdict.exit_status() is Status.PASS
