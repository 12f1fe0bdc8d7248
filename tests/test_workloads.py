"""The trainings that ship with the product, run as users run them."""

import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

torch = pytest.importorskip("torch")

from ddparity.workloads import digits, tiny_gpt  # noqa: E402

LOSS = re.compile(r"step \d+ loss ([0-9.]+)")
ALONE = [sys.executable]
TWO_RANKS = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
DIVERGENCE = """
import gc, sys, torch
import torch.distributed as dist
from ddparity.workloads import digits

dist.init_process_group("gloo")
torch.manual_seed(0)
net = digits.Classifier()
model = digits.wrap(net, sys.argv[1])
pixels, classes = digits.load()
for step in range(2):
    mine = torch.arange(32 * step, 32 * step + 32)[dist.get_rank()::2]
    net.zero_grad()
    torch.nn.functional.cross_entropy(model(pixels[mine]), classes[mine]).backward()
    for name, parameter in net.named_parameters():
        mean = parameter.grad.clone()
        dist.all_reduce(mean)
        if dist.get_rank() == 0 and not torch.allclose(mean / 2, parameter.grad, rtol=1e-5, atol=1e-8):
            print("differs", name, flush=True)
dist.destroy_process_group()
gc.collect()
"""


def run(command: list[str], **env: str) -> str:
    """Run a training with one thread a process and return its output."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", **env}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def losses(output: str) -> list[float]:
    return [float(value) for value in LOSS.findall(output)]


@pytest.fixture(scope="module")
def control() -> list[float]:
    return losses(run([*ALONE, "-m", "ddparity.workloads.digits", "--steps", "4"]))


def test_two_ranks_train_as_one_device_does(control: list[float]) -> None:
    assert len(control) == 4
    assert losses(run([*TWO_RANKS, "-m", "ddparity.workloads.digits", "--steps", "4"])) == pytest.approx(
        control, abs=2e-6
    )


@pytest.mark.parametrize(
    "fault",
    ["summed", pytest.param("unsynced", marks=pytest.mark.slow), pytest.param("double-divide", marks=pytest.mark.slow)],
)
def test_a_planted_fault_leaves_the_first_loss_alone_and_bends_what_follows(control: list[float], fault: str) -> None:
    faulty = losses(run([*TWO_RANKS, "-m", "ddparity.workloads.digits", "--steps", "4", "--fault", fault]))
    assert faulty[0] == pytest.approx(control[0], abs=2e-6)
    assert faulty[-1] != pytest.approx(control[-1], abs=2e-5)


@pytest.mark.parametrize(("fault", "expected"), [("none", []), ("unsynced", ["fc2.weight"] * 2)])
def test_unsynced_means_that_one_gradient_differs_between_the_ranks(
    tmp_path: Path, fault: str, expected: list[str]
) -> None:
    script = tmp_path / "divergence.py"
    script.write_text(DIVERGENCE, encoding="utf-8")
    output = run([*TWO_RANKS, str(script), fault])
    assert re.findall(r"differs (\S+)", output) == expected


def test_digits_learns() -> None:
    output = run([*ALONE, "-m", "ddparity.workloads.digits", "--steps", "200"])
    accuracy = re.search(r"accuracy ([0-9.]+) on 297 samples", output)
    assert accuracy is not None
    assert float(accuracy[1]) > 0.85


def test_every_rank_takes_its_slice_of_one_global_batch() -> None:
    first, second = list(digits.batches(50, 16, 8, seed=3)), list(digits.batches(50, 16, 8, seed=3))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert [len(batch) for batch in first] == [16] * 8
    assert sorted(torch.cat(first)[:50].tolist()) == list(range(50))


def test_a_missing_scikit_learn_is_named_with_the_command_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(SystemExit, match=r"pip install 'ddparity\[demo\]'"):
        digits.load()


@pytest.mark.parametrize("module", [digits, tiny_gpt])
def test_a_batch_that_the_ranks_cannot_share_is_refused(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(SystemExit):
        module.parse([])
    assert "cannot be shared evenly by 3 ranks" in capsys.readouterr().err


def test_tiny_gpt_trains_alone_and_on_two_ranks() -> None:
    small = ["-m", "ddparity.workloads.tiny_gpt", "--steps", "3", "--layers", "1", "--width", "32", "--seq", "16"]
    assert len(losses(run([*ALONE, *small, "--threads", "1"]))) == 3
    assert len(losses(run([*TWO_RANKS, *small]))) == 3


def test_tiny_gpt_is_causal_and_wide_as_asked() -> None:
    torch.manual_seed(0)
    shape = tiny_gpt.Shape(num_layers=2, width=32, seq=16)
    net = tiny_gpt.TinyGPT(shape)
    tokens, targets = tiny_gpt.batch_of(0, 2, shape, seed=0)
    assert torch.equal(tokens[:, 1:], targets[:, :-1])
    changed = tokens.clone()
    changed[:, -1] = (changed[:, -1] + 1) % shape.vocab
    with torch.no_grad():
        before, after = net(tokens), net(changed)
    assert before.shape == (2, 16, shape.vocab)
    assert torch.equal(before[:, :-1], after[:, :-1])
    assert not torch.equal(before[:, -1], after[:, -1])
