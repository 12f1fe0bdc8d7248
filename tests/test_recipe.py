"""Recipes: the arithmetic of ranks in one process tells weighting and coupled samples from communication."""

import sys
from collections.abc import Callable

import pytest

from ddparity._errors import UsageError
from ddparity._recipe import load_recipe
from ddparity.judge import Status, compare_trials
from ddparity.trace import Site, TrialFacts, TrialStatus, read_trial

pytestmark = pytest.mark.timeout(240)
RECIPE = """
import torch
from torch import nn
NORM = {norm!r}

def model():
    norm = nn.BatchNorm1d(16) if NORM == "batch" else nn.LayerNorm(16)
    drop = nn.Dropout(0.25 if NORM == "drop" else 0.0)
    return nn.Sequential(nn.Linear(8, 16), norm, nn.ReLU(), drop, nn.Linear(16, 3))

def batch(n):
    return torch.randn(n, 8), torch.randint(3, (n,))

def loss(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])

def optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)
"""
TRAIN = ["-m", "ddparity.workloads.recipe"]


@pytest.fixture
def made(recorded, monkeypatch, tmp_path_factory) -> Callable[..., TrialFacts]:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")

    def trial(norm: str, *flags: str, ranks: int = 1) -> TrialFacts:
        path = recorded.store.root.parent / f"recipe_{norm}.py"
        path.write_text(RECIPE.format(norm=norm))
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks > 1 else []
        command = [sys.executable, *launcher, *TRAIN, str(path), "--batch", "12", *flags]
        facts = recorded(f"recipe.{norm}.{ranks}{''.join(flags)}", command)
        assert facts.status is TrialStatus.COMPLETED
        return facts

    return trial


def after(store, facts: TrialFacts) -> dict[str, list[int | None]]:
    rank = read_trial(store.path(facts.id)).ranks[0]
    found: dict[str, list[int | None]] = {}
    for row in rank.digests:
        if row.site.site in (Site.SYNCED_GRADIENT, Site.PARAMETER_AFTER, Site.BUFFER):
            found.setdefault(f"{row.site.site} {row.site.name}", []).append(row.digest.sketch.tobytes())
    return found


@pytest.mark.parametrize(
    "norm", [pytest.param("layer", marks=pytest.mark.slow), "batch", pytest.param("drop", marks=pytest.mark.slow)]
)
def test_the_arithmetic_of_two_ranks_is_bit_identical_to_gloo(made, recorded, norm):
    one, two = (after(recorded.store, made(norm, "--as-ranks", "2")), after(recorded.store, made(norm, ranks=2)))
    assert one == two
    assert len(one) >= 12


def test_coupled_samples_deviate_in_one_process_already(made, recorded):
    path = recorded.store.path
    control, same, ranks = (made("batch"), made("batch", "--as-ranks", "2"), made("batch", ranks=2))
    for candidate in (same, ranks):
        first = compare_trials(path(control.id), path(candidate.id)).first("numerics")
        assert (first.name, first.cause.code) == ("1", "bn.local_stats")


def test_a_healthy_recipe_agrees_everywhere(made, recorded):
    path = recorded.store.path
    for candidate in (made("layer", "--as-ranks", "2"), made("layer", "--accum", "3"), made("layer", ranks=2)):
        verdict = compare_trials(path(made("layer").id), path(candidate.id))
        assert verdict.layers["numerics"].status is Status.PASS, verdict.findings


def test_a_recipe_that_lacks_a_function_says_which(tmp_path):
    with pytest.raises(UsageError, match="is not there"):
        load_recipe(tmp_path / "none.py")
    (tmp_path / "r.py").write_text("def model(): ...\ndef batch(n): ...\n")
    with pytest.raises(UsageError, match="lacks loss, optimizer"):
        load_recipe(tmp_path / "r.py")
