"""Scripts on top of the frameworks that people use, unmodified: healthy runs pass, planted faults get their names."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from ddparity.judge import Status, compare_trials

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
SCRIPTS = Path(__file__).parent / "scripts" / "frameworks"
NEEDS = {"trainer": "transformers", "lit": "lightning", "accelerated": "accelerate", "sft": "trl", "nano": "torch"}
LAYERS = ("numerics", "data", "memory", "communication")


@pytest.fixture
def compared(recorded, monkeypatch, tmp_path):
    """Return ``compared(script, flags)``: the verdict on two ranks against one device."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))

    def judged(script, *flags):
        if importlib.util.find_spec(NEEDS[script]) is None:
            pytest.skip(f"{NEEDS[script]} is not installed")
        out = [str(tmp_path / "out")] if script in ("trainer", "sft") else []
        devices = ["--devices", "2"] if script == "lit" else []
        command = [str(SCRIPTS / f"{script}.py"), *out]
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        control = recorded(f"{script}-alone", [sys.executable, *command], control=True)
        name = "-".join([script, "two", *(flag.strip("-") for flag in flags)])
        candidate = recorded(name, [sys.executable, *launcher, *command, *devices, *flags])
        return compare_trials(*(recorded.store.path(trial.id) for trial in (control, candidate)))

    return judged


HEALTHY = [(script, flags) for script in NEEDS for flags in ((), ("--accumulate", "2"))]  # sft pads to the longest


@pytest.mark.parametrize(("script", "flags"), HEALTHY)
def test_a_healthy_run_passes_in_all_layers(compared, script, flags):
    verdict = compared(script, *flags)
    assert {layer: verdict.layers[layer].status for layer in LAYERS} == dict.fromkeys(LAYERS, Status.PASS), (
        verdict.layers,
        verdict.findings[:3],
    )


FAULTS = [
    ("trainer", ("--unweighted",), (0, "loss", "loss", "loss.weighting")),
    ("nano", ("--accumulate", "2", "--sum"), (0, "backward", "block.linear2.bias", "grad.scaled")),
    ("sft", ("--unweighted",), (0, "loss", "loss", "loss.weighting")),
    ("lit", ("--leave-out",), (0, "optimizer", "body.2.weight", "opt.not_held")),
    ("accelerated", ("--accumulate", "2", "--clip-each"), (0, "clip", "grad_norm", "clip.every_micro_batch")),
]


@pytest.mark.parametrize(("script", "flags", "expected"), FAULTS)
def test_a_planted_fault_is_named(compared, script, flags, expected):
    verdict = compared(script, *flags)
    first = verdict.first("numerics")
    assert first is not None
    assert (first.step, first.phase, first.name, first.cause.code) == expected
    assert {layer for layer in LAYERS if verdict.layers[layer].status is not Status.PASS} == {"numerics"}


def test_lightning_started_by_itself_is_recorded_on_all_ranks(recorded, monkeypatch):
    if importlib.util.find_spec("lightning") is None:
        pytest.skip("lightning is not installed")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    command = [sys.executable, str(SCRIPTS / "lit.py")]
    control = recorded("lit-alone", command, control=True)
    candidate = recorded("lit-own-launcher", [*command, "--devices", "2"])
    verdict = compare_trials(*(recorded.store.path(trial.id) for trial in (control, candidate)))
    assert verdict.layers["numerics"].status is Status.PASS
    assert verdict.merge_plan["samples"] == "Shard"


@pytest.mark.parametrize(
    ("script", "flags", "at_step"),
    [
        ("trainer", ["ckpt-{run}", "--resume", "--steps", "12"], 4),
        ("lit", ["--devices", "2", "--out", "ckpt-{run}", "--resume"], 8),
    ],
)
def test_a_checkpoint_of_a_framework_brings_a_run_back(monkeypatch, tmp_path, script, flags, at_step):
    if importlib.util.find_spec(NEEDS[script]) is None:
        pytest.skip(f"{NEEDS[script]} is not installed")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    ddparity = str(Path(sys.executable).with_name("ddparity"))
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [ddparity, "recover", "--json", "--at-step", str(at_step), "--", *launcher, str(SCRIPTS / f"{script}.py")]
    done = subprocess.run([*command, *flags], cwd=tmp_path, capture_output=True, text=True, timeout=380, check=False)
    found = json.loads(done.stdout[done.stdout.index("{") :])
    assert (found["status"], done.returncode) == ("PASS", 0), found
    assert 0 < found["resumed_from"] < at_step + 1
