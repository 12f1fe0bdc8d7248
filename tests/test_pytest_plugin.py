"""The plugin in a suite of its own: a healthy model passes, a faulty one fails with the cause."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

SUITE = """
import os
import pytest
import torch
from torch import nn

def model():
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(8) if os.environ.get("NORM") == "batch" else nn.LayerNorm(8)
    return nn.Sequential(nn.Linear(4, 8), norm, nn.Linear(8, 2))

def batch(n):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(n, 4, generator=generator), torch.randint(0, 2, (n,), generator=generator)

def loss(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])

def optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)

@pytest.mark.ddparity(nproc=2, global_batch=16)
def test_parity(ddparity):
    result = ddparity.recipe(__file__, accum=2)
    assert {rung.label for rung in result.rungs if rung.trial} >= {"0", "2b", "4"}
"""
WRONG = """
import pytest

@pytest.mark.ddparity(ranks=2)
def test_parity(ddparity):
    pass

@pytest.mark.ddparity(nproc=2)
def test_usage(ddparity):
    ddparity.recipe("missing.py")
"""


def suite(folder: Path, text: str, **env: str) -> tuple[int, str]:
    import os

    (folder / "test_mine.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "--strict-markers", "-p", "no:cacheprovider", "test_mine.py"]
    own = {**os.environ, "OMP_NUM_THREADS": "1", **env}
    done = subprocess.run(command, cwd=folder, env=own, capture_output=True, text=True, timeout=280, check=False)
    return done.returncode, re.sub(r"\s+", " ", done.stdout)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_healthy_model_passes(tmp_path):
    code, said = suite(tmp_path, SUITE)
    assert code == 0, said
    assert "1 passed" in said


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_model_that_couples_samples_fails_with_the_cause(tmp_path):
    code, said = suite(tmp_path, SUITE, NORM="batch")
    assert code == 1
    assert "[bn.local_stats]" in said
    assert "more: ddparity compare" in said


def test_what_the_mark_does_not_know_is_said(tmp_path):
    code, said = suite(tmp_path, WRONG)
    assert code != 0
    assert "pytest.mark.ddparity has no 'ranks'. It has: nproc, global_batch, accum, steps, timeout_s." in said
    assert "--recipe stands in place of the command and needs --global-batch" in said
