"""The prediction against the same step on real tensors, and what is said of it."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capture_harness import run
from ddparity._errors import UsageError
from ddparity._recipe import load_recipe
from ddparity.memory import Point, forecast, measure, parse_size, predict

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
    done = run("-c", "from ddparity.cli._main import main; main()", "memory", recipe, *options, "--json")
    assert done.returncode == 1, done.stderr
    document = json.loads(done.stdout)
    assert document["bands"]["128"] == "OOM-PRONE"
    assert svg.read_text().startswith("<svg")
    done = run("-c", "from ddparity.cli._main import main; main()", "memory", recipe, "--batch", "64,x")
    assert done.returncode == 2
    assert "no list of batch sizes" in done.stderr
