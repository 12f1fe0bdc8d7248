"""What a control that cannot judge others is told, and the commands that a verdict prints: with the trial's options."""

import shlex
import sys
import textwrap

import pytest

import synthetic
from ddparity.capture._ring import Ring
from ddparity.judge import Status, communication, prove_control
from ddparity.judge._recording import Options, record_command
from ddparity.judge._run import load_run
from ddparity.trace import TrialFacts
from ddparity.trials import RecordSpec, Store, record
from synthetic import Training, write_trial

pytestmark = pytest.mark.timeout(60)


def test_a_control_that_trains_on_other_samples_the_second_time(tmp_path, monkeypatch):
    first, again = (write_trial(Training(), tmp_path / name) for name in ("first", "again"))
    assert prove_control(first, again).status == "PROVED"
    samples = synthetic._samples
    monkeypatch.setattr(synthetic, "_samples", lambda training, step, rank: samples(training, step + (step > 0), rank))
    proof = prove_control(first, write_trial(Training(), tmp_path / "other"))
    assert proof.status == "FAILED"
    assert proof.reason.startswith(
        "not repeatable: from step 1 on the second run has other samples; seed what shuffles"
    )


def test_a_control_whose_gradients_are_all_zero(tmp_path):
    code = """
        import torch
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            torch.nn.functional.cross_entropy(model(torch.randn(8, 4)), torch.rand(8, 1)).backward()
            optimizer.step()
    """
    store = Store(tmp_path / "store")
    command = [sys.executable, "-c", textwrap.dedent(code)]
    facts = record(RecordSpec(command=command, store=store, name="t", quiet=True))
    proof = prove_control(store.path(facts.id), store.path(facts.id))
    assert proof.reason.startswith("no parameter moves: every gradient is zero")


@pytest.mark.parametrize("world_size", [1, 2])
def test_processes_that_train_side_by_side_without_a_group(tmp_path, world_size):
    folder = write_trial(Training(world_size=world_size), tmp_path / "t")
    for rank in range(world_size):
        Ring(folder, rank=rank, world_size=world_size)
    verdict, found = communication.judge(None, load_run(folder))
    assert found == []
    assert verdict.status is (Status.NOT_TESTED if world_size == 1 else Status.INCONCLUSIVE)
    assert verdict.reason.startswith("no process group was made" if world_size == 1 else "2 processes trained and made")


def test_a_trial_is_recorded_again_with_its_own_options():
    plain = TrialFacts(id="t", name="t", command=["python", "train.py"], cwd="/")
    assert record_command("t", plain.command, Options.of(plain)) == "ddparity record --name t -- python train.py"
    plain.pinned, plain.stop_after_steps, plain.steps, plain.batch_dim = "c", 8, "0:2", 1
    plain.level, plain.dtype, plain.neutral_dropout = "gradients", "float64", True
    words = shlex.split(record_command("t", plain.command, Options.of(plain)))
    options = (
        "--neutral-dropout --pinned --dtype float64 --steps 0:2 --level gradients --batch-dim 1 --stop-after-steps 8"
    )
    assert words == shlex.split(f"ddparity record {options} --name t -- python train.py")
    plain.pinned = None
    again = record_command("t", plain.command, Options.of(plain, bank=True), control=True)
    assert again.startswith("ddparity record --control --neutral-dropout --bank ")
