"""The prediction against the same step on real tensors, and what is said of it."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from capture_harness import SCRIPTS, run
from ddparity._errors import UsageError
from ddparity._recipe import load_recipe
from ddparity.judge._memory_run import MemoryRank, MemoryStep
from ddparity.memory import (
    Bands,
    Point,
    Question,
    ask_recipe,
    forecast,
    measure,
    parse_size,
    predict,
    read_measured,
    render_curve,
    render_forecast,
)
from ddparity.memory._allowance import default_allowance
from ddparity.memory._measured import most_reserved

MAIN = ("-c", "from ddparity.cli._main import main; main()", "memory")
GPT = SCRIPTS / "memory_recipe.py"
RECIPE = """
import torch
from torch import nn

def model():
    return nn.Sequential(nn.Linear(32, 128), nn.Tanh(), nn.Linear(128, 10))

def batch(n):
    return torch.randn(n, 32), torch.randint(10, (n,))

def loss(model, batch):
    {look}
    return nn.functional.cross_entropy(model(batch[0]), batch[1])

def optimizer(model):
    return torch.optim.{optimizer}(model.parameters(), lr=0.01)
"""


def recipe_at(folder: Path, *, optimizer: str = "AdamW", look: str = "pass") -> Path:
    path = folder / "recipe.py"
    path.write_text(RECIPE.format(optimizer=optimizer, look=look))
    return path


@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
def test_fake_tensors_need_what_real_ones_do(tmp_path, optimizer):
    recipe = load_recipe(recipe_at(tmp_path, optimizer=optimizer))
    how, points = predict(recipe, [64, 256])
    assert how == "fake tensors"
    for point in points:
        assert point == measure(recipe, point.batch, fake=False)


def test_the_optimizers_state_comes_after_the_first_step(tmp_path):
    recipe = load_recipe(recipe_at(tmp_path))
    _, (point,) = predict(recipe, [4096])
    assert point.peak - point.first_step == pytest.approx(2 * point.parameters, rel=0.01)
    assert point.phase in ("forward", "backward")


def test_code_that_looks_at_values_is_run_on_small_batches(tmp_path):
    recipe = load_recipe(recipe_at(tmp_path, look="float(batch[0].sum())"))
    how, (point,) = predict(recipe, [512])
    assert how == "small real batches"
    assert point.peak == pytest.approx(measure(recipe, 512, fake=False).peak, rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("setting", ["", "AUTOCAST", "SAVING"])
def test_the_prediction_is_what_the_allocator_hands_out(setting, monkeypatch):
    """Of a block that is checkpointed a few bytes of random state come and go that no operation makes."""
    variables = {f"RECIPE_{setting}": "1"} if setting else {}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    _, points = predict(load_recipe(GPT), [4, 24])
    for point in points:
        done = run(SCRIPTS / "memory_peak.py", GPT, str(point.batch), **variables)
        assert point.peak == pytest.approx(int(done.stdout.split("peak")[1]), rel=0.005)


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_two_ranks_need_what_is_predicted_for_them(parallel):
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", SCRIPTS / "memory_peak.py")
    question = Question(batches=[4, 16], device="cpu", parallel=parallel, nproc=2)
    (found,) = ask_recipe(question, GPT)
    assert not dist.is_initialized()
    for point in found.points:
        done = run(*launcher, GPT, str(point.batch), parallel)
        peaks = [int(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("peak")]
        assert point.peak * 0.999 <= max(peaks) <= found.totals[point.batch] * 1.01
    if parallel == "fsdp":
        assert found.removed == pytest.approx(0.1, abs=0.05)


def test_a_measured_point_takes_the_place_of_the_allowance():
    points = [
        Point(batch=n, peak=10 * n + 100, first_step=0, phase="backward", categories={}, parameters=0) for n in (8, 16)
    ]
    found = forecast(points, how="", added={}, capacity=1000, measured=(32, 500))
    assert found.allowance.fixed == {"measured beyond the prediction": 80}
    assert found.totals == {8: 260, 16: 340}
    assert (found.fixed, found.per_sample, found.largest_stable) == (180, 10, 62)


def test_the_allowance_stands_in_the_report():
    points = [Point(batch=8, peak=10**9, first_step=10**8, phase="backward", categories={}, parameters=0)]
    found = forecast(points, how="x", added={}, capacity=None, allowance=default_allowance("cuda", 8))
    assert found.totals[8] == pytest.approx(1.05e9 + (600 + 256 + 512) * (1 << 20))
    text = render_forecast(found)
    assert "NCCL buffers 512 MiB, fragmentation 5%; --allowance or --measured replaces it" in text
    assert default_allowance("cpu", 8).total(5) == 5


@given(stable=st.floats(0.1, 0.9), tight=st.floats(0.05, 1.0), shares=st.lists(st.floats(0, 2), min_size=2, max_size=9))
def test_bands_grow_with_the_share(stable, tight, shares):
    bands = Bands(stable=min(stable, tight), tight=max(stable, tight))
    order = ["STABLE", "TIGHT", "OOM-PRONE"]
    found = [order.index(bands.name(share)) for share in sorted(shares)]
    assert found == sorted(found)


def test_a_trial_that_was_recorded_on_a_device_is_a_measured_point(recorded):
    step = MemoryStep(0, "cuda", {}, {}, 0, 5 << 30, ("", 0))
    on_cpu = MemoryStep(0, "malloc", {}, {}, 0, 7 << 30, ("", 0))
    ranks = [MemoryRank(0, [step, replace(step, reserved=6 << 30)]), MemoryRank(1, [step, on_cpu])]
    assert most_reserved(ranks) == 6 << 30
    trial = recorded("measured", [sys.executable, str(SCRIPTS / "memory_faults.py"), "none", "--steps", "2"])
    with pytest.raises(UsageError, match="was recorded without a device"):
        read_measured(trial.id, str(recorded.store.root))
    assert read_measured("32=1.5GiB", None) == (32, 3 << 29)


def test_a_peak_that_moves_is_said():
    phases = {8: "forward", 16: "backward"}
    points = [
        Point(batch=n, peak=n << 20, first_step=0, phase=phase, categories={}, parameters=0)
        for n, phase in phases.items()
    ]
    found = forecast(points, how="x", added={}, capacity=None)
    assert not found.same_phase
    assert "the peak moves between the two largest, forward and backward" in render_forecast(found)


@given(fixed=st.integers(1, 10**10), each=st.integers(1, 10**8), capacity=st.integers(10**9, 10**12))
def test_the_largest_stable_batch_is_stable_and_the_next_is_not(fixed, each, capacity):
    points = [
        Point(batch=n, peak=fixed + each * n, first_step=0, phase="backward", categories={}, parameters=0)
        for n in (8, 16)
    ]
    found = forecast(points, how="", added={"more": 1000}, capacity=capacity)
    largest = found.largest_stable
    assert largest is not None
    if largest:
        assert fixed + 1000 + each * largest <= 0.8 * capacity * (1 + 1e-9)
    assert fixed + 1000 + each * (largest + 1) > 0.8 * capacity * (1 - 1e-9)


@pytest.mark.parametrize(("text", "value"), [("80GiB", 80 << 30), ("24 GB", 24 * 10**9), ("1.5m", 1500000), ("7", 7)])
def test_sizes(text, value):
    assert parse_size(text) == value


@pytest.mark.parametrize("text", ["", "GiB", "-1GB", "8 apples", "0"])
def test_what_is_no_size(text):
    with pytest.raises(UsageError, match="such as 80GiB"):
        parse_size(text)


def test_the_command(tmp_path):
    recipe, svg = recipe_at(tmp_path), tmp_path / "peak.svg"
    options = ["--batch", "64,128", "--capacity", "200KiB", "--parallel", "ddp", "--svg", svg]
    done = run(*MAIN, recipe, *options, "--json")
    assert done.returncode == 1, done.stderr
    document = json.loads(done.stdout)
    assert document["bands"]["128"] == "OOM-PRONE"
    assert svg.read_text().startswith("<svg")
    done = run(*MAIN, recipe, "--batch", "64,x")
    assert done.returncode == 2
    assert "no list of batch sizes" in done.stderr


def test_the_curve_has_its_bands_in_words():
    points = [
        Point(batch=n, seq=seq, peak=n * seq << 20, first_step=0, phase="", categories={}, parameters=0)
        for seq in (1, 2)
        for n in (8, 16)
    ]
    made = [forecast([p for p in points if p.seq == seq], how="", added={}, capacity=30 << 20) for seq in (1, 2)]
    root = ElementTree.fromstring(render_curve(*made))
    words = [text for each in root.iter() if (text := (each.text or "").strip())]
    for word in ("STABLE", "TIGHT", "OOM-PRONE", "80%: 24 MiB", "capacity: 30 MiB", "length 1", "length 2", "16"):
        assert word in words
    assert "batch 16: 32 MiB, OOM-PRONE" in words


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--bands", "90,80"], "Write them as 80,92"),
        (["--measured", "x=1GiB"], "Write it as 32=51.5GiB"),
        (["--parallel", "fsdp"], "say how many, such as --nproc 8"),
        (["--parallel", "tp"], "none, ddp or fsdp"),
        (["--device", "tpu"], "cuda or cpu"),
        (["--nproc", "0"], "1 or more"),
    ],
)
def test_what_cannot_be_asked(tmp_path, options, words):
    done = run(*MAIN, recipe_at(tmp_path), *options)
    assert done.returncode == 2
    assert words in done.stderr
