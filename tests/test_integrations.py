"""The callbacks without a framework's loop around them: what they hand on, what they leave alone."""

import json
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from ddparity._errors import CheckpointDamaged
from ddparity.capture._metric_file import METRICS_VARIABLE
from ddparity.checkpoint import seal, seal_path
from ddparity.integrations import _logged
from ddparity.integrations._seals import Seals
from ddparity.judge._data_metric import _OF_THE_MACHINE

FRAMEWORKS = ("torch", "lightning", "transformers", "accelerate", "tensorboard", "mlflow")


def fresh(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)


def test_the_room_loads_no_framework():
    code = (
        "import ddparity.integrations, ddparity.integrations._history, ddparity.integrations.tensorboard, sys, json\n"
    )
    code += "import ddparity.integrations.mlflow, ddparity.cli.export\n"
    code += f"print(json.dumps([n for n in {FRAMEWORKS!r} if n in sys.modules]))"
    assert json.loads(fresh(code).stdout) == []


@pytest.mark.parametrize("name", ["lightning", "transformers", "accelerate"])
def test_a_missing_framework_names_the_command_that_installs_it(name):
    blocked = "; ".join(f"sys.modules[{each!r}] = None" for each in (name, f"{name}.pytorch", f"{name}.state"))
    code = f"import sys; {blocked}\ntry:\n import ddparity.integrations.{name}\nexcept ImportError as e: print(e)"
    assert fresh(code).stdout.strip().endswith(f"Install it: pip install {name}")


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (1, 1.0),
        (0.5, 0.5),
        (torch.tensor(2.5), 2.5),
        (torch.tensor([3], dtype=torch.int64), 3.0),
        (torch.tensor(1.5, dtype=torch.bfloat16, requires_grad=True), 1.5),
        (np.float32(0.25), 0.25),
        (np.array([4.0]), 4.0),
        (True, None),
        (None, None),
        ("0.5", None),
        (torch.zeros(2), None),
        (np.zeros(3), None),
        ([1.0], None),
    ],
)
def test_what_counts_as_a_number(value, number):
    assert _logged.as_number(value) == number


@pytest.mark.slow
def test_without_a_recording_nothing_is_handed_on_or_read(monkeypatch):
    from ddparity.integrations.accelerate import watch
    from ddparity.integrations.lightning import DdparityCallback as ForLightning
    from ddparity.integrations.transformers import DdparityCallback as ForTheTrainer

    def fail(*args, **kwargs):
        raise AssertionError("something was handed on")

    monkeypatch.setattr(_logged, "note_metric", fail)
    monkeypatch.setattr(_logged, "hyperparameters", fail)
    trainer = object()  # with nothing to read from it
    mine = ForLightning()
    for hook in (mine.on_train_start, mine.on_train_epoch_start, mine.on_validation_end, mine.on_train_end):
        if hook != mine.on_train_start:
            hook(trainer, None)
    mine.setup(trainer, None, "fit")
    mine.teardown(trainer, None, "fit")
    theirs = ForTheTrainer()
    state = SimpleNamespace(global_step=3)
    theirs.on_train_begin(None, state, None)
    theirs.on_log(None, state, None, logs={"loss": 1.0})
    theirs.on_evaluate(None, state, None, metrics={"eval_loss": 1.0})
    theirs.on_save(None, state, None)
    accelerator = SimpleNamespace(log=print, init_trackers=print)
    assert watch(accelerator) is accelerator
    assert (accelerator.log, accelerator.init_trackers) == (print, print)


def test_a_job_of_the_gateway_gets_the_numbers_without_a_recording(monkeypatch, tmp_path):
    from ddparity.integrations.transformers import DdparityCallback

    monkeypatch.setenv(METRICS_VARIABLE, str(tmp_path / "metrics.jsonl"))
    mine, state = DdparityCallback(), SimpleNamespace(global_step=3)
    mine.on_log(None, state, None, logs={"loss": 1.5, "epoch": 0.5})
    mine.on_log(None, state, None, logs={"eval_loss": 2.5})
    mine.on_evaluate(None, state, None, metrics={"eval_loss": 2.5, "eval_accuracy": 0.5})
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [(line["name"], line["value"], line["step"]) for line in lines] == [
        ("loss", 1.5, 3),
        ("eval_loss", 2.5, 3),
        ("eval_accuracy", 0.5, 3),
    ]


def test_settings_are_numbers_switches_and_named_words(monkeypatch):
    told = {}
    monkeypatch.setattr(_logged, "hyperparameters", told.update)
    _logged.settings({"lr": 0.1, "bf16": True, "precision": "16", "path": "/secret", "x": None}, words=["precision"])
    assert told == {"lr": 0.1, "bf16": True, "precision": "16"}


@pytest.mark.parametrize(
    ("name", "held"),
    [
        *((name, False) for name in ("eval_runtime", "eval_samples_per_second", "eval_steps_per_second", "time")),
        *(
            (name, False)
            for name in ("eval_jit_compilation_time", "tokens_per_sec", "it/s", "total_flos", "gpu_memory")
        ),
        *((name, False) for name in ("epoch_time", "val/throughput", "init_mem_cpu_alloc_delta")),
        *((name, True) for name in ("eval_loss", "perplexity", "val_acc", "accuracy", "f1", "timestep_loss", "times")),
        *((name, True) for name in ("memory_recall", "speed_error", "errors_per_sample", "bits_per_byte")),
    ],
)
def test_numbers_of_the_machine_are_not_held_against_the_control(name, held):
    assert (_OF_THE_MACHINE.search(name) is None) == held


def test_a_checkpoint_that_cannot_be_sealed_does_not_end_the_training(tmp_path, capsys):
    Seals().saved(tmp_path / "nothing", 3)
    Seals().saved("s3://bucket/checkpoint", 3)
    told = capsys.readouterr().err
    assert "was not sealed" in told
    assert "not a local path" in told


def test_what_is_resumed_from_is_verified(tmp_path, capsys):
    file = tmp_path / "last.ckpt"
    file.write_bytes(b"weights")
    Seals().check(file)
    assert "goes unverified: not sealed" in capsys.readouterr().err
    with pytest.raises(CheckpointDamaged, match="not sealed"):
        Seals(required=True).check(file)
    seal(file, step=4)
    link = tmp_path / "link.ckpt"
    link.symlink_to(file)
    Seals(required=True).check(link)
    file.write_bytes(b"weighty")
    with pytest.raises(CheckpointDamaged, match="written anew"):
        Seals().check(link)


def test_the_seal_of_a_removed_file_goes_with_it(tmp_path):
    seals, first, second = Seals(), tmp_path / "1.ckpt", tmp_path / "2.ckpt"
    first.write_bytes(b"1")
    seals.saved(first, 1)
    second.write_bytes(b"2")
    first.unlink()
    seals.saved(second, 2)
    assert not seal_path(first).exists()
    assert seal_path(second).exists()
