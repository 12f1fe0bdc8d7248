"""Interrupted, resumed, held against a run that went through: which loss has which name."""

import sys
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest

from ddparity._errors import UsageError
from ddparity.judge import Status
from ddparity.judge._resume import judge_resumed
from ddparity.judge._run import Run, load_run
from ddparity.report import render_resumption
from ddparity.trace import Event, EventRow, Site
from ddparity.trials import Store
from ddparity.trials._recover import RecoverSpec, recover, restart_notes
from synthetic import Training, write_trial

SCRIPT = Path(__file__).parent / "scripts" / "resumable.py"
START, AT, NUM = 2, 3, 2


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Run:
    training = Training(world_size=2, steps=6, optimizer="adam", buffer=True)
    return load_run(write_trial(training, tmp_path_factory.mktemp("recover") / "whole"))


def resumed_of(whole: Run) -> Run:
    """What a run records that resumes after ``START`` steps and loses nothing."""
    ranks = {}
    for rank, steps in whole.ranks.items():
        ranks[rank] = {step - START: deepcopy(found) for step, found in steps.items() if step >= START}
        ranks[rank][0].digests[Site.PARAMETER] = deepcopy(steps[START - 1].digests[Site.PARAMETER_AFTER])
    return Run(whole.trial, ranks)


def judged(whole, resumed):
    return judge_resumed(whole, resumed, at_step=AT, num_steps=NUM)


def first(whole, resumed):
    answer = judged(whole, resumed)
    assert answer.status is Status.DEVIATES
    found = answer.findings[0]
    return found.step, str(found.phase), found.name, found.cause.code, found.ranks


def changed(rows, factor=1.5):
    digest = rows[0].digest
    other = replace(
        digest, sketch=digest.sketch * factor, sum=digest.sum * factor, sum_sq=digest.sum_sq, hash=digest.hash ^ 1
    )
    rows[0] = replace(rows[0], digest=other)


def test_a_run_that_loses_nothing_passes(whole):
    answer = judged(whole, resumed_of(whole))
    assert (answer.status, answer.resumed_from, answer.compared, answer.findings) == (Status.PASS, 2, [2, 3, 4], [])
    assert answer.checked > 50


def test_the_optimizer_of_one_rank(whole):
    resumed = resumed_of(whole)
    changed(resumed.ranks[1][0].digests[Site.PARAMETER_AFTER]["2.weight", ""])
    assert first(whole, resumed) == (2, "optimizer", "2.weight", "resume.optimizer_state", [1])
    assert judged(whole, resumed).findings[0].ranks_differ


def test_a_learning_rate_that_was_not_brought_back(whole):
    resumed = resumed_of(whole)
    for rank in resumed.ranks:
        event = resumed.ranks[rank][0].events[Event.OPTIMIZER][0]
        event.data["groups"][0]["lr"] = 0.5
        changed(resumed.ranks[rank][0].digests[Site.PARAMETER_AFTER]["2.weight", ""])
    answer = judged(whole, resumed)
    assert first(whole, resumed) == (2, "optimizer", "lr", "resume.schedule", [0, 1])
    assert answer.findings[0].evidence == {"group": 0, "uninterrupted": 0.05, "resumed": 0.5}
    assert answer.findings[1].follows == 0


def test_an_epoch_that_starts_anew(whole):
    resumed = resumed_of(whole)
    for rank in resumed.ranks:
        resumed.ranks[rank][0].samples = deepcopy(whole.ranks[rank][0].samples)
    answer = judged(whole, resumed)
    assert first(whole, resumed) == (2, "data", "sample_ids", "resume.samples", [0, 1])
    assert answer.findings[0].evidence["samples_of_step"] == 0


def test_a_buffer_and_a_loss_scale(whole):
    resumed = resumed_of(whole)
    changed(resumed.ranks[0][1].digests[Site.BUFFER]["0.running", ""])
    assert first(whole, resumed) == (3, "buffer", "0.running", "resume.buffers", [0])
    resumed, scaled = resumed_of(whole), deepcopy(whole)
    for run, value in ((scaled, 256.0), (resumed, 65536.0)):
        for rank in run.ranks:
            run.ranks[rank][START if run is scaled else 0].events[Event.SCALE] = [
                EventRow(0, 0, 0, "scale", "", value, {})
            ]
    assert first(scaled, resumed) == (2, "loss", "loss_scale", "resume.scaler", [0, 1])


def test_a_generator_counts_where_it_is_drawn_from(whole):
    other, resumed = deepcopy(whole), resumed_of(whole)
    for run, state in ((other, "a"), (resumed, "b")):
        steps = run.ranks[0]
        steps[START if run is other else 0].events[Event.RNG] = [EventRow(0, 0, 0, "rng", "", None, {"torch": state})]
    answer = judged(other, resumed)
    assert answer.status is Status.PASS
    assert answer.notes == ["generators not brought back, and not drawn from by the model: torch"]
    rows = other.ranks[0][START].digests[Site.ACTIVATION]["0", ""]
    rows[0] = replace(rows[0], flags=rows[0].flags | 1)
    assert first(other, resumed) == (2, "forward", "rng", "resume.rng", [0])


def test_a_run_that_did_not_resume_at_all(whole):
    fresh = Run(whole.trial, deepcopy(whole.ranks))
    assert first(whole, fresh) == (0, "init", "*", "resume.from_scratch", None)


def test_parameters_of_no_step(whole):
    resumed = resumed_of(whole)
    for rank in resumed.ranks:
        changed(resumed.ranks[rank][0].digests[Site.PARAMETER]["0.bias", ""])
    assert first(whole, resumed)[1:4] == ("init", "0.bias", "resume.parameters")
    answer = judged(whole, resumed)
    assert answer.resumed_from is None
    assert "resumed from the parameters of no step" in render_resumption(answer, {})


def test_what_is_missing_is_said(whole):
    resumed = resumed_of(whole)
    for rank in resumed.ranks:
        for step in (1, 2, 3):
            del resumed.ranks[rank][step]
    answer = judged(whole, resumed)
    assert (answer.status, answer.compared) == (Status.INCONCLUSIVE, [2])
    assert "last 2 of the steps" in answer.reason


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (["torchrun", "--nproc-per-node", "2", "--max-restarts", "3", "train.py"], True),
        (["python", "-m", "torch.distributed.run", "--standalone", "--max_restarts=1", "train.py"], True),
        (
            ["env", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1", "torchrun", "--standalone", "--max-restarts=1", "t.py"],
            False,
        ),
        (["torchrun", "--nproc-per-node", "2", "train.py"], False),
        (["python", "train.py", "--max-restarts", "3"], False),
    ],
)
def test_restart_settings_that_fail_are_told(command, told):
    notes = restart_notes(command)
    assert bool(notes) == told
    assert not told or "6 of 16" in notes[0]


def test_runs_are_kept_apart(tmp_path):
    settings = {"store": Store(tmp_path / "s"), "name": "n", "at_step": 3}
    with pytest.raises(UsageError, match=r"Put \{run\} into the path"):
        RecoverSpec(command=["python", "train.py"], **settings)
    (tmp_path / "ckpt").mkdir()
    (tmp_path / "ckpt" / "old.pt").touch()
    with pytest.raises(UsageError, match="is not empty"):
        RecoverSpec(command=["python", "train.py"], checkpoints=tmp_path / "ckpt", **settings)
    with pytest.raises(UsageError, match="--at-step 0"):
        RecoverSpec(command=["python", "t.py", "{run}"], **{**settings, "at_step": 0})


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("fault", "found"),
    [
        ("none", None),
        ("no_optimizer", ("optimizer", "resume.schedule")),
        ("no_random", ("forward", "resume.rng")),
        ("restart_epoch", ("data", "resume.samples")),
    ],
)
def test_a_real_training_is_interrupted_and_resumed(fault, found, tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    command = [sys.executable, str(SCRIPT), "--save", str(tmp_path / "{run}"), "--fault", fault]
    spec = RecoverSpec(
        command=command, store=Store(tmp_path / "store"), name=fault.replace("_", "-"), at_step=3, quiet=True
    )
    done = recover(spec)
    assert done.answer.resumed_from == 2
    if found is None:
        assert (done.answer.status, done.answer.findings) == (Status.PASS, [])
    else:
        first = done.answer.findings[0]
        assert (first.step, str(first.phase), first.cause.code) == (2, *found)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_rank_that_is_killed(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    ranks = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*ranks, str(SCRIPT), "--save", str(tmp_path / "ckpt"), "--fault", "optimizer_rank0"]
    spec = RecoverSpec(
        command=command, store=Store(tmp_path / "store"), name="killed", at_step=3, kill=1, quiet=True,
        checkpoints=tmp_path / "ckpt",
    )  # fmt: skip
    first = recover(spec).answer.findings[0]
    # The optimizer's state dict holds the learning rate too, and that comes before the update.
    assert (first.step, first.name, first.cause.code) == (2, "lr", "resume.schedule")
    assert (first.ranks, first.ranks_differ) == ([1], True)
    assert not (tmp_path / "ckpt").exists()
