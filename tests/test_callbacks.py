"""One line in a script of Lightning, the Trainer or Accelerate: what it makes visible, and what it seals."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

import ddparity
from ddparity.checkpoint import Condition, seal_path, verify
from ddparity.judge import Status, compare_trials
from ddparity.trace import Event, read_trial

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
SCRIPTS = Path(__file__).parent / "scripts" / "frameworks"
NEEDS = {"logged_lit": "lightning", "logged_trainer": "transformers", "logged_accelerated": "accelerate"}
METRICS = {"logged_lit": "val_acc", "logged_trainer": "eval_accuracy", "logged_accelerated": "accuracy"}
LAYERS = ("numerics", "data", "memory", "communication")
LAUNCHER = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def command(script, *flags, out="", ranks=2):
    if importlib.util.find_spec(NEEDS[script]) is None:
        pytest.skip(f"{NEEDS[script]} is not installed")
    words = [str(SCRIPTS / f"{script}.py"), *([out] if script == "logged_trainer" else [])]
    words += ["--devices", "2"] if script == "logged_lit" and ranks == 2 else []
    return [*(LAUNCHER if ranks == 2 else [sys.executable]), *words, *flags]


@pytest.fixture
def trials(recorded, tmp_path):
    """Return ``trials(script, flags)``: folders of one device and of two ranks, and the verdict."""

    def pair(script, *flags, alone=("--callback",)):
        out = str(tmp_path / "out")
        first = "-".join([script, "alone", *(flag.strip("-") for flag in alone)])
        control = recorded(first, command(script, *alone, out=out, ranks=1), control=True)
        name = "-".join([script, "two", *(flag.strip("-") for flag in flags)])
        candidate = recorded(name, command(script, *flags, out=out))
        folders = [recorded.store.path(trial.id) for trial in (control, candidate)]
        return *folders, compare_trials(*folders)

    return pair


@pytest.mark.parametrize("script", NEEDS)
def test_a_healthy_run_passes_and_its_metrics_are_the_controls(trials, script):
    _, two, verdict = trials(script, "--callback")
    found = {layer: verdict.layers[layer].status for layer in LAYERS}
    assert found == dict.fromkeys(LAYERS, Status.PASS), (verdict.layers, verdict.findings[:3])
    ranks = read_trial(two).ranks
    for rank in ranks:
        logged = [event for event in rank.events if event.kind == Event.METRIC and event.name == METRICS[script]]
        assert len(logged) >= 2
        assert all(event.data.get("compared", True) for event in logged)
        assert {event.data["own_step"] for event in logged} >= {"logged_lit": {6, 12}, "logged_trainer": {3, 6}}.get(
            script, {0, 1}
        )
    trained = [e for e in ranks[0].events if e.kind == Event.METRIC and e.name in ("train_loss", "loss")]
    assert trained
    assert not any(event.data.get("compared", True) for event in trained)
    assert verdict.variable == "world_size"
    assert any(varied.variable.startswith("hyperparameter:") for varied in verdict.varied) or script.endswith("ated")


@pytest.mark.parametrize("script", NEEDS)
def test_a_metric_of_one_share_is_named(trials, script):
    alone = ("--callback",) if script != "logged_trainer" else ("--callback", "--own-share")
    *_, verdict = trials(script, "--callback", "--own-share", alone=alone)
    first = verdict.first("data")
    assert first is not None
    assert (first.phase, first.name, first.cause.code) == ("eval", f"metric:{METRICS[script]}", "metric.one_share")
    assert {layer for layer in LAYERS if verdict.layers[layer].status is not Status.PASS} == {"data"}


def test_it_is_the_callback_that_shows_it(trials):
    *_, verdict = trials("logged_lit", "--own-share", alone=())
    assert {layer: verdict.layers[layer].status for layer in LAYERS} == dict.fromkeys(LAYERS, Status.PASS)


def test_settings_are_facts_and_texts_are_not(trials):
    one, _, _ = trials("logged_accelerated", "--callback")
    told = read_trial(one).ranks[0].facts.hyperparameters  # and not where its data lies
    assert told == {
        "learning_rate": 0.01,
        "dropout": 0.0,
        "mixed_precision": "no",
        "gradient_accumulation_steps": 1,
    }


def run(words, cwd):
    """Run a training that nothing records, once more if gloo's threads abort a rank that has ended with its groups."""
    done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, timeout=200, check=False)
    if "exitcode: -6" in done.stderr or "exitcode  : -6" in done.stderr:
        done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, timeout=200, check=False)
    return done


def broken(path):
    data = bytearray(path.read_bytes())
    data[-5] ^= 0xFF
    path.write_bytes(bytes(data))


def test_lightning_seals_and_refuses_a_damaged_checkpoint(tmp_path):
    saved = run(command("logged_lit", "--callback", "--out", "out"), tmp_path)
    assert saved.returncode == 0, saved.stderr[-2000:]
    (checkpoint,) = tmp_path.rglob("*.ckpt")  # it keeps the last; the seal of the first went with it
    assert verify(checkpoint).step == 12
    assert list(tmp_path.rglob("*seal.json")) == [seal_path(checkpoint)]
    broken(checkpoint)
    resumed = run(command("logged_lit", "--callback", "--out", "out", "--resume", ranks=1), tmp_path)
    assert resumed.returncode == 1
    assert "CheckpointDamaged" in resumed.stderr
    assert "Restored all states" not in resumed.stderr


def test_the_trainer_seals_what_all_ranks_wrote_and_refuses_a_damaged_checkpoint(tmp_path):
    saved = run(command("logged_trainer", "--callback", out="out"), tmp_path)
    assert saved.returncode == 0, saved.stderr[-2000:]
    last = tmp_path / "out" / "checkpoint-6"
    report = verify(last)
    assert (report.condition, report.step) == (Condition.INTACT, 6)
    sealed = json.loads(seal_path(last).read_text())["files"]
    assert {"rng_state_0.pth", "rng_state_1.pth", "model.safetensors"} <= set(sealed)
    broken(last / "model.safetensors")
    resumed = run(command("logged_trainer", "--callback", "--resume", out="out", ranks=1), tmp_path)
    assert resumed.returncode == 1
    assert "CheckpointDamaged" in resumed.stderr
    assert not (tmp_path / "out" / "checkpoint-9").exists()


def test_accelerate_seals_and_refuses_a_damaged_state(tmp_path):
    saved = run(command("logged_accelerated", "--callback", "--out", "out"), tmp_path)
    assert saved.returncode == 0, saved.stderr[-2000:]
    assert verify(tmp_path / "out").checked == 4
    broken(tmp_path / "out" / "model.safetensors")
    resumed = run(command("logged_accelerated", "--callback", "--out", "out", "--load", ranks=1), tmp_path)
    assert resumed.returncode == 1
    assert "CheckpointDamaged" in resumed.stderr


def test_the_exported_error_is_an_import_error_too():
    assert issubclass(ddparity.DependencyMissing, ImportError)
