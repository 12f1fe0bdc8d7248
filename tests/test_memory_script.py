"""``ddparity memory -- COMMAND``: what is predicted from a script against the same script on real tensors."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from capture_harness import SCRIPTS, environment, run
from ddparity._errors import UsageError
from ddparity.memory._script import read_command

SCRIPT = str(SCRIPTS / "memory_trainings.py")
MAIN = ("-c", "from ddparity.cli._main import main; main()", "memory")
MIB = 1 << 20


def predicted(*options: str, command: tuple[str, ...]) -> dict:
    done = run(*MAIN, "--json", *options, "--", *command, timeout=110)
    assert done.returncode in (0, 1), done.stderr
    return json.loads(done.stdout)


def measured(kind: str, batch: int) -> int:
    """Return the peak of the CPU's allocator in the script as it is."""
    done = run(SCRIPT, kind, "--measure", "--batch", str(batch))
    assert done.returncode == 0, done.stderr
    return int(done.stdout.split("peak")[1])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "how", "off"),
    [
        ("loader", "fake tensors", 0.005),
        ("accumulate", "fake tensors", 0.005),
        ("gan", "fake tensors", 0.005),
        ("masked", "small real batches", 0.01),
        ("decides", "small real batches", 0.25),
    ],
)
def test_the_prediction_is_what_the_script_needs(kind: str, how: str, off: float) -> None:
    """Of a recurrent layer the library's own scratch memory is seen by no account: it may be a fifth more."""
    found = predicted("--device", "cpu", "--batch", "24,40", command=("python", SCRIPT, kind))
    assert found["how"] == how
    assert found["totals"]["40"] == pytest.approx(measured(kind, 40), rel=off)
    assert "6 samples, of length" in found["notes"][0]


@pytest.mark.slow
def test_a_script_for_cuda_is_tried_without_one_and_its_files_stay(tmp_path: Path) -> None:
    (tmp_path / "old.txt").write_text("kept")
    (tmp_path / "log.txt").write_text("kept")
    command = ("python", SCRIPT, "cuda", "--out", str(tmp_path))
    found = predicted("--batch", "16,32", "--allowance", "none", command=command)
    assert found["totals"]["32"] == pytest.approx(measured("cuda", 32), rel=0.06)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"old.txt": "kept", "log.txt": "kept"}
    assert any("torch.compile" in note for note in found["notes"])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_what_a_script_wraps_its_model_in_is_found(kind: str) -> None:
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    done = run(*launcher, SCRIPT, kind, "--measure", "--batch", "32")
    most = max(int(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("peak"))
    command = ("torchrun", "--nproc-per-node", "2", SCRIPT, kind)
    found = predicted("--device", "cpu", "--batch", "16,32", command=command)
    assert (found["parallel"], found["num_ranks"]) == (kind, 2)
    assert most * 0.99 < found["totals"]["32"] < most * 1.08


@pytest.mark.slow
def test_a_model_is_sharded_for_the_question() -> None:
    options = ("--device", "cpu", "--batch", "16,32", "--parallel", "fsdp", "--nproc", "4")
    found = predicted(*options, command=("python", SCRIPT, "fsdp"))
    alone = predicted("--device", "cpu", "--batch", "16,32", command=("python", SCRIPT, "fsdp"))
    assert found["points"][1]["parameters"] == pytest.approx(alone["points"][1]["parameters"] / 4, rel=0.01)
    assert found["removed"] == pytest.approx(1 - found["points"][1]["peak"] / alone["points"][1]["peak"])
    assert found["removed"] > 0


@pytest.mark.slow
def test_the_values_of_a_real_step_are_used_where_a_script_decides_by_them(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\n"
        "net = torch.nn.Linear(64, 256)\n"
        "optimizer = torch.optim.AdamW(net.parameters())\n"
        "for _ in range(3):\n"
        "    x = torch.randn(4, 32, 64)\n"
        "    lengths = torch.full((4,), 20)\n"
        "    out = net(x)[:, : int(lengths.max())]\n"
        "    loss = out.square().mean()\n"
        "    assert torch.isfinite(loss), 'not finite'\n"
        "    loss.backward()\n"
        "    optimizer.step()\n"
        "    optimizer.zero_grad()\n"
    )
    found = predicted("--device", "cpu", "--batch", "8,16", command=("python", str(script)))
    assert "values that a real step" in found["how"]
    slope = found["per_sample"]
    # The input, the layer's output, and four factors of the square's gradient for 20 of the 32 places.
    assert slope == pytest.approx(4 * (32 * 64 + 32 * 256 + 4 * 20 * 256), rel=0.001)


@pytest.mark.slow
def test_the_length_of_sequences_is_changed_too() -> None:
    options = ("--device", "cpu", "--batch", "32,64", "--seq", "64,128")
    found = predicted(*options, command=("python", SCRIPT, "loader"))["lengths"]
    short, long = (found[length]["per_sample"] for length in ("64", "128"))
    assert long == pytest.approx(2 * short, rel=0.02)


@pytest.mark.slow
def test_the_tiny_gpt_is_answered_without_allocating_what_is_predicted(tmp_path: Path) -> None:
    """A batch whose peak is several times what any process of the answer holds."""
    code = (
        "import resource, subprocess, sys\n"
        "done = subprocess.run(sys.argv[1:], capture_output=True, text=True)\n"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)\n"
        "print(done.stdout, done.stderr)\n"
    )
    command = [sys.executable, "-c", code, sys.executable, *MAIN, "--json", "--batch", "64,512", "--device", "cpu"]
    command += ["--", "python", "-m", "ddparity.workloads.tiny_gpt"]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=110, check=True)
    most, _, told = done.stdout.partition("\n")
    found = json.loads(told)
    assert found["how"] == "fake tensors"
    assert found["totals"]["512"] > 4000 * MIB
    assert int(most) * 1024 < 700 * MIB


def test_what_cannot_be_tried_names_a_recipe() -> None:
    done = run(*MAIN, "--batch", "4", "--", "python", SCRIPT, "plain")
    assert done.returncode == 2
    assert "without a forward of a module that trains" in done.stderr
    assert "def loss(model, batch)" in done.stderr


@pytest.mark.parametrize(
    ("command", "target", "ranks", "launched"),
    [
        (["train.py", "--lr", "1"], ["train.py", "--lr", "1"], 1, False),
        (["python", "-m", "pkg.train", "a=1"], ["-m", "pkg.train", "a=1"], 1, False),
        (["torchrun", "--nproc-per-node", "4", "train.py"], ["train.py"], 4, True),
        (["torchrun", "--standalone", "--nproc_per_node=2", "t.py", "-x"], ["t.py", "-x"], 2, True),
        (["env", "A=1", "python", "-m", "torch.distributed.run", "--nproc-per-node", "3", "t.py"], ["t.py"], 3, True),
    ],
)
def test_commands(command: list[str], target: list[str], ranks: int, launched: bool) -> None:
    found = read_command(command)
    assert (found.target, found.num_ranks, found.launched) == (target, ranks, launched)
    assert found.env == ({"A": "1"} if command[0] == "env" else {})


def test_a_command_without_a_script() -> None:
    with pytest.raises(UsageError, match="No Python script is in 'make train'"):
        read_command(["make", "train"])
