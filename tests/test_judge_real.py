"""The judge on real recordings: healthy runs must pass, faults must be found where they are, gaps must be said."""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import synthetic
from ddparity._errors import ExitCode
from ddparity.cli import main
from ddparity.judge import Finding, Status, Verdict, compare_and_measure, compare_trials
from ddparity.trace import TrialStatus, read_trial

pytestmark = pytest.mark.timeout(240)
SCRIPT = str(Path(__file__).parent / "scripts" / "judged.py")
slow = pytest.mark.slow


def named(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "-", text).strip("-") or "plain"


@pytest.fixture
def trial(recorded, monkeypatch) -> Callable[..., Path]:
    """Return ``trial(flags, ranks)``: the folder of that training's trial; each is recorded once a session."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")

    def made(flags: str, ranks: int = 1, **spec) -> Path:
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks > 1 else []
        key = f"judged.{ranks}.{named(flags)}"
        facts = recorded(key, [sys.executable, *launcher, SCRIPT, *flags.split()], **spec)
        return recorded.store.path(facts.id)

    return made


@pytest.fixture
def compared(trial) -> Callable[..., Verdict]:
    """Return ``compared(flags, more, ranks)``: the verdict on ``flags more`` against ``flags`` on one device."""

    def judged(common: str, more: str = "", ranks: int = 2) -> Verdict:
        return compare_trials(trial(common), trial(f"{common} {more}".strip(), ranks))

    return judged


def first_of(verdict: Verdict, layer: str = "numerics") -> Finding:
    assert verdict.layers[layer].status is Status.DEVIATES, verdict.layers[layer]
    first = verdict.first(layer)
    assert first is not None
    return first


# -- no false alarm --------------------------------------------------------------------------------------------------

HEALTHY = [
    ("--model mlp", "", 2),
    ("--model mlp", "--hand --accum 2", 3),
    ("--model gpt --opt adamw", "--accum 2 --shuffle", 2),
    ("--model mlp --clip 0.1 --scaler", "", 2),
    ("--model counted", "--accum 2 --shuffle", 2),
    ("--model mlp --after clip", "--accum 2", 2),
    pytest.param("--model mlp --opt momentum", "--hand --after average", 3, marks=slow),
    pytest.param("--model norms --opt nesterov --wd 0.1", "--shuffle", 2, marks=slow),
    pytest.param("--model norms --opt eps --smoothing 0.1", "--accum 2", 3, marks=slow),
    pytest.param("--model cnn1 --opt adamw", "--shuffle", 4, marks=slow),
    pytest.param("--model cnn --opt sgd --batch 768", "--shuffle", 2, marks=slow),
    pytest.param("--model zero --opt adam --wd 0.1", "--accum 2", 2, marks=slow),
    pytest.param("--model zero --opt momentum --scheduler cosine", "--view", 2, marks=slow),
    pytest.param("--model gpt --opt fused --clip 1.0", "--accum 4", 3, marks=slow),
    pytest.param("--model gpt --opt groups --steps 5", "--shuffle", 2, marks=slow),
    pytest.param("--model gru --opt amsgrad", "--accum 2", 2, marks=slow),
    pytest.param("--model encoder --opt loop", "--shuffle", 2, marks=slow),
    pytest.param("--model moe --opt adamw", "--accum 2", 2, marks=slow),
    pytest.param("--model unused --opt rmsprop", "", 2, marks=slow),
    pytest.param("--model deep --opt sgd", "--accum 2", 2, marks=slow),
    pytest.param("--model deeprelu --opt adagrad", "", 2, marks=slow),
    pytest.param("--model wide --opt adamw --lr 0.003 --seed 14", "--accum 2 --shuffle", 3, marks=slow),
    pytest.param("--model biggpt --opt adamw --lr 0.003 --seed 14", "--accum 2 --shuffle", 3, marks=slow),
    pytest.param("--model huge --opt adamw --seed 5", "--accum 2 --shuffle", 2, marks=slow),
    pytest.param("--model mlp --separable --scale 10 --lr 0.5 --opt adamw", "--shuffle", 3, marks=slow),
    pytest.param("--model wide --separable --scale 30 --opt momentum --loss mse --steps 5", "", 2, marks=slow),
    pytest.param("--model mlp --loss sum --opt adamw", "--hand", 3, marks=slow),
]


@pytest.mark.parametrize(("common", "more", "ranks"), HEALTHY)
def test_a_healthy_run_passes(compared, common, more, ranks):
    verdict = compared(common, more, ranks)
    assert verdict.layers["numerics"].status is Status.PASS, (verdict.layers["numerics"], verdict.first("numerics"))
    assert verdict.layers["data"].status is Status.PASS
    assert verdict.exit_status() is Status.PASS
    assert verdict.findings == []


def test_the_map_of_errors_is_rounding_up_to_the_first_deviation(trial):
    folders = trial("--model mlp"), trial("--model mlp --bug path", 2)
    measured = compare_and_measure(*folders)
    verdict, errors = measured.verdict, measured.pictures.errors
    first = first_of(verdict)
    at = next(i for i, cell in enumerate(errors.cells) if cell.error > cell.floor)
    assert (errors.cells[at].step, errors.cells[at].phase, errors.cells[at].name) == (0, "backward", first.name)
    assert sorted(errors.cells[at].by_rank) == [0, 1]
    assert max(errors.cells[at].by_rank.values()) == pytest.approx(errors.cells[at].error, rel=1e-3)


@slow
def test_a_window_late_in_a_run_is_judged_by_what_parameters_were_off_by_when_it_opened(trial):
    flags, window = "--model wide --separable --scale 10 --opt adam --steps 60", {"steps": "57:60"}
    verdict = compare_trials(trial(f"{flags} --accum 1", **window), trial(f"{flags} --shuffle", 2, **window))
    assert verdict.layers["numerics"].status is Status.PASS, verdict.first("numerics")
    assert verdict.merge_plan["steps"] == [57, 58, 59]


@slow
def test_a_second_window_is_judged_as_sharply_as_the_first(trial):
    flags, windows = "--model mlp --steps 40", {"steps": "0:2,36:38"}
    verdict = compare_trials(trial(f"{flags} --accum 1", **windows), trial(flags, 2, **windows))
    assert verdict.layers["numerics"].status is Status.PASS, verdict.first("numerics")
    assert verdict.merge_plan["steps"] == [0, 1, 36, 37]
    assert "hide" not in verdict.layers["numerics"].reason


# -- faults ----------------------------------------------------------------------------------------------------------

FAULTS = {
    "unsynced": ("--model mlp", "", (0, "backward", "4.weight", "grad.unsynced")),
    "summed": ("--model mlp", "", (0, "collective", "4.bias", "grad.summed")),
    "bf16_reduce": ("--model gpt --opt adamw", "", (0, "collective", "norm.weight", "grad.low_precision")),
    "double": ("--model mlp", "--bug-step 1", (1, "collective", "4.bias", "grad.double_averaged")),
    "path": ("--model mlp", "", (0, "backward", "2.bias", "grad.path")),
    "not_held": ("--model mlp", "--accum 2", (0, "optimizer", "0.weight", "opt.not_held")),
    "lr": ("--model mlp", "--bug-step 1", (1, "optimizer", "lr", "opt.lr")),
    "clip": ("--model mlp --clip 0.1 --scaler", "", (0, "clip", "grad_norm", "clip.scaled_gradients")),
    "clip_each": ("--model mlp --clip 0.1", "--accum 2", (0, "clip", "grad_norm", "clip.every_micro_batch")),
    "state": ("--model mlp --opt momentum", "--bug-step 1", (1, "optimizer", "0.weight", "opt.ranks_differ")),
    "init": ("--model mlp", "--hand", (0, "init", "0.weight", "init.ranks_differ")),
    "left": ("--model mlp", "--bug-step 1", (1, "optimizer", "4.weight", "opt.changed_on_ranks")),
    "none_synced": ("--model gpt --opt adamw", "", (0, "backward", "norm.weight", "grad.none_synced")),
    "missing": ("--model mlp", "--bug-step 1", (1, "backward", "0.weight", "grad.missing")),
    "shifted": ("--model counted", "", (0, "forward", "table", "forward.ranks_differ")),
    "hand_sum": ("--model mlp", "--hand", (0, "collective", "4.bias", "grad.summed")),
}
LESS_OFTEN = {"none_synced", "missing", "hand_sum", "init", "state", "double"}


@pytest.mark.parametrize("bug", [pytest.param(bug, marks=slow if bug in LESS_OFTEN else ()) for bug in FAULTS])
def test_a_fault_is_the_first_finding(compared, bug):
    common, more, expected = FAULTS[bug]
    first = first_of(compared(common, f"--bug {bug} {more}".strip()))
    assert (first.step, first.phase, first.name, first.cause.code) == expected
    assert first.ranks_differ is (bug in ("unsynced", "none_synced", "state", "init", "shifted", "left"))


def test_tokens_that_are_averaged_alike_although_ranks_hold_different_numbers(compared):
    first = first_of(compared("--model gpt --loss tokens"))
    assert (first.step, first.phase, first.name, first.cause.code) == (0, "loss", "loss", "loss.weighting")


def test_a_batch_norm_that_sees_one_ranks_samples(compared):
    first = first_of(compared("--model bn"))
    assert (first.step, first.phase, first.name, first.cause.code) == (0, "forward", "norm", "bn.local_stats")


def test_micro_batches_on_one_device_show_what_is_coupled_over_the_batch(trial):
    """A bias in front of a batch norm has no gradient at all; Adam moves it by rounding alone."""
    verdict = compare_trials(trial("--model bn"), trial("--model bn --alone --accum 2"))
    assert first_of(verdict).cause.code == "bn.local_stats"
    healthy = compare_trials(trial("--model cnn1 --opt adam"), trial("--model cnn1 --opt adam --alone --accum 2"))
    assert healthy.layers["numerics"].status is Status.PASS, healthy.first("numerics")


@pytest.mark.parametrize("bug", ["overlap", pytest.param("other_samples", marks=slow)])
def test_samples_that_are_not_the_ranks_share_are_a_data_finding(compared, bug):
    verdict = compared("--model mlp", f"--bug {bug}")
    first = first_of(verdict, "data")
    assert (first.step, first.phase, first.name) == (0, "data", "sample_ids")
    assert first.cause.code == f"data.{bug}"
    assert verdict.layers["numerics"].status is not Status.DEVIATES


# -- what cannot be judged -------------------------------------------------------------------------------------------


def test_bfloat16_hides_faults(trial):
    control = trial("--model mlp --bf16")
    verdict = compare_trials(control, control)
    assert verdict.layers["numerics"].status is Status.INCONCLUSIVE
    assert "record --control --dtype float64" in verdict.layers["numerics"].reason


def test_random_masks_inside_the_model_part_the_runs(compared):
    verdict = compared("--model gptdrop --opt adamw")
    assert verdict.layers["numerics"].status is Status.INCONCLUSIVE
    assert "random masks differ from blocks.0.dropout on" in verdict.layers["numerics"].reason


def test_a_control_that_failed_its_proof_judges_nobody(trial):
    control = trial("--model mlp --nan", control=True, prove=True)
    proof = read_trial(control).facts.proof
    assert proof is not None
    assert (proof.status, proof.reason.startswith("NaN or infinity at step 1")) == ("FAILED", True)
    verdict = compare_trials(control, control)
    assert verdict.layers["numerics"].status is Status.INCONCLUSIVE
    assert "the control failed its proof" in verdict.layers["numerics"].reason


# -- partial trials --------------------------------------------------------------------------------------------------


def test_a_rank_killed_in_mid_step_leaves_a_trial_that_is_judged_as_far_as_it_goes(compared, trial):
    verdict = compared("--model mlp", "--kill-rank 1")
    killed = read_trial(trial("--model mlp --kill-rank 1", 2))
    assert killed.facts.status is TrialStatus.FAILED
    assert verdict.partial
    assert any("rank 1" in reason and "killed" in reason for reason in verdict.partial_reasons)
    assert verdict.layers["numerics"].status is Status.PASS, verdict.first("numerics")
    assert 0 in verdict.merge_plan["steps"]


@slow
def test_a_fault_before_the_kill_is_found(compared):
    first = first_of(compared("--model mlp", "--kill-rank 1 --bug summed"))
    assert (first.step, first.cause.code) == (0, "grad.summed")


# -- the command, and the trials in numpy ----------------------------------------------------------------------------


def test_the_command_gives_the_judges_answer(trial, recorded, capsys, monkeypatch):
    control, candidate = trial("--model mlp"), trial("--model mlp --bug summed", 2)
    monkeypatch.setattr(sys, "argv", ["ddparity", "compare", "--json", "--store", str(recorded.store.root)])
    sys.argv += [control.name, candidate.name]
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == ExitCode.DEVIATES
    document = json.loads(capsys.readouterr().out)
    assert document["findings"][0]["cause"]["code"] == "grad.summed"
    assert document["merge_plan"]["samples"] == "Shard"


def rows_of(folder: Path) -> list[tuple]:
    """Return what a rank wrote, row by row, without memory and what depends on values, model, time or machine."""
    rank = read_trial(folder).ranks[0]
    rows: list[tuple] = []
    for row in rank.digests:
        where = (row.site.site, row.site.name, row.site.part, row.site.module, row.digest.shape, row.digest.dtype)
        rows.append((row.seq, *where, row.step, row.batch, row.occurrence, row.backward, row.rows, row.flags))
        rows[-1] += (row.digest.hash is not None,)
    rows += [(s.seq, "samples", s.step, s.batch, s.training, len(s.ids)) for s in rank.samples]
    rows += [
        (e.seq, e.kind, e.step, e.name, e.value is not None) for e in rank.events if e.kind not in ("window", "memory")
    ]
    return [row[1:] for row in sorted(rows, key=lambda row: row[0])]


@pytest.mark.parametrize("ranks", [1, 2])
def test_trials_in_numpy_are_written_as_the_recorder_writes_them(trial, tmp_path, ranks):
    flags = "--model tanh --opt adam --clip 0.1 --loss mse"
    training = synthetic.Training(
        world_size=ranks, widths=(24, 16, 10), micro=2 if ranks > 1 else 1, optimizer="adam", clip=0.1
    )
    real = rows_of(trial(f"{flags} --accum 2" if ranks > 1 else flags, ranks))
    assert rows_of(synthetic.write_trial(training, tmp_path / "numpy")) == real
