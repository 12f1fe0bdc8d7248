"""Runs altered on request: promoted to float64, with inputs moved, without dropout, on the control's samples."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from capture_harness import Recorded
from ddparity._errors import UsageError
from ddparity.judge import Status, Verdict, compare_trials
from ddparity.trace import TrialFacts, TrialStatus, read_trial
from ddparity.trials import RecordSpec

pytestmark = pytest.mark.timeout(240)
SCRIPT = str(Path(__file__).parent / "scripts" / "altered.py")


@pytest.fixture
def made(recorded, monkeypatch) -> Callable[..., TrialFacts]:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")

    def trial(flags: str = "", ranks: int = 1, **spec) -> TrialFacts:
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks > 1 else []
        options = "-".join(key[:5] for key in sorted(spec))
        key = f"altered{ranks}{flags}{options}".replace(" ", "").replace("--", ".")
        facts = recorded(key, [sys.executable, *launcher, SCRIPT, *flags.split()], **spec)
        assert facts.status is TrialStatus.COMPLETED
        return facts

    return trial


@pytest.fixture
def first_rank(made, recorded) -> Callable[..., Recorded]:
    return lambda *args, **spec: Recorded(recorded.store.path(made(*args, **spec).id) / "rank-00000")


@pytest.fixture
def verdict(recorded) -> Callable[[TrialFacts, TrialFacts], Verdict]:
    return lambda a, b: compare_trials(recorded.store.path(a.id), recorded.store.path(b.id))


def dtypes(rank: Recorded) -> set[str]:
    return {d.digest.dtype for d in rank.trace.digests} - {"int64", "bool"}


PROMOTED = ["", "--loss mse", "--optimizer adamw", "--autocast --loss mse", "--tokens"]


@pytest.mark.parametrize("flags", PROMOTED)
def test_promoted_training_computes_in_float64_only(first_rank, flags):
    rank = first_rank(flags, dtype="float64")
    states = {d.site.part for d in rank.digests("optimizer_state") if d.digest.dtype != "float64"}
    assert states <= {"step"}
    assert dtypes(rank) - ({"float32"} if states else set()) == {"float64"}
    assert all(event.data["dtype"] == "float64" for event in rank.events("backward"))


def test_promotion_keeps_initial_values_and_samples(first_rank):
    plain, promoted = first_rank(""), first_rank("", dtype="float64")
    for before, after in zip(plain.digests("parameter"), promoted.digests("parameter"), strict=True):
        assert before.site.name == after.site.name
        assert before.digest.sum == after.digest.sum
    ids = [[list(row.ids) for row in rank.trace.samples] for rank in (plain, promoted)]
    assert ids[0] == ids[1]


@pytest.mark.parametrize("flags", ["", pytest.param("--wrap fsdp --loss mse", marks=pytest.mark.slow)])
def test_promoted_ranks_agree_with_the_promoted_control_far_below_float32(made, verdict, flags):
    control = made(flags, dtype="float64", bank=True, control=True, prove=False)
    found = verdict(control, made(flags + " --batch 6", ranks=2, dtype="float64", pinned=True))
    assert found.layers["numerics"].status is Status.PASS, found.findings
    assert found.layers["data"].status is Status.NOT_TESTED


def test_a_fault_of_a_billionth_is_found_in_float64_and_not_in_float32(made, verdict):
    control, wide = made(), made(dtype="float64")
    assert verdict(control, made("--bug scale")).layers["numerics"].status is Status.PASS
    found = verdict(wide, made("--bug scale", dtype="float64"))
    first = found.first("numerics")
    assert (first.step, first.name) == (0, "out.weight")
    assert first.floor.value < 1e-12


def test_floor_runs_stand_beside_the_control_and_are_used(made, verdict, recorded):
    control = made(control=True, floor=True, prove=False)
    moved = read_trial(recorded.store.path(control.floors.moved))
    assert moved.facts.status is TrialStatus.COMPLETED
    assert verdict(control, made(dtype="float64")).notes == ["held against the control's run in float64"]
    assert verdict(control, made("--optimizer sgd")).layers["numerics"].status is Status.PASS


def test_a_moved_run_differs_by_rounding_and_keeps_its_samples(made, verdict, first_rank):
    for flags in ("", "--tokens"):
        plain, moved = first_rank(flags), first_rank(flags, perturb=True)
        assert [list(r.ids) for r in plain.trace.samples] == [list(r.ids) for r in moved.trace.samples]
        gradients = [[d.digest.sum for d in rank.digests("synced_gradient", 0)] for rank in (plain, moved)]
        assert gradients[0] != gradients[1]
        assert verdict(made(flags), made(flags, perturb=True)).layers["numerics"].status is Status.PASS


def test_low_precision_is_inconclusive_and_names_the_command_that_settles_it(made, verdict):
    found = verdict(made("--autocast"), made("--autocast --optimizer sgd")).layers["numerics"]
    assert found.status is Status.INCONCLUSIVE
    assert "--dtype float64" in found.reason
    assert "ddparity compare" in found.reason


def test_neutral_dropout_settles_what_random_masks_leave_open(made, verdict):
    flags = "--dropout 0.5"
    control = made(flags, control=True, bank=True, prove=False)
    open_ = verdict(control, made(flags + " --batch 6", ranks=2, pinned=True)).layers["numerics"]
    assert open_.status is Status.INCONCLUSIVE
    assert "--neutral-dropout" in open_.reason
    neutral = made(flags + " --batch 12", control=True, bank=True, prove=False, neutral_dropout=True)
    settled = verdict(neutral, made(flags + " --batch 6", ranks=2, pinned=True, neutral_dropout=True))
    assert settled.layers["numerics"].status is Status.PASS, settled.findings
    assert settled.variable == "world_size", settled.varied


@pytest.mark.parametrize("flags", [pytest.param("--loss mse", marks=pytest.mark.slow), "--feed"])
def test_pinned_ranks_train_on_the_control_s_samples(made, verdict, flags):
    control = made(flags, control=True, bank=True, prove=False)
    assert verdict(control, made(flags + " --batch 6", ranks=2)).layers["numerics"].status is Status.INCONCLUSIVE
    pinned = verdict(control, made(flags + " --batch 6", ranks=2, pinned=True))
    assert pinned.layers["numerics"].status is Status.PASS
    assert pinned.merge_plan["samples"] == "Shard"
    assert "pinned" in pinned.layers["data"].reason


def test_batches_that_do_not_divide_name_the_sizes_that_would(recorded, monkeypatch, made):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    made("--loss mse", control=True, bank=True, prove=False)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", SCRIPT]
    facts = recorded("pinned.odd", [*command, "--loss", "mse", "--batch", "5"], pinned=True)
    assert facts.status is TrialStatus.FAILED
    output = (recorded.store.path(facts.id) / "private" / "output.log").read_text()
    assert "12 samples does not divide into 2 ranks x 5" in output
    assert "these batch sizes a rank do: 1, 2, 3, 6" in output


def test_banked_batches_are_private(made, recorded):
    control = made("--loss mse", control=True, bank=True, prove=False)
    private = recorded.store.path(control.id) / "private"
    assert (private.stat().st_mode & 0o777) == 0o700
    assert len(list((private / "bank").glob("loader-000-*.pt"))) == 3


def test_options_that_need_a_control_say_so(tmp_path, recorded):
    for option in ("floor", "bank"):
        with pytest.raises(UsageError, match="--control"):
            RecordSpec(command=["python"], store=recorded.store, name="x", **{option: True})
    with pytest.raises(UsageError, match="float64"):
        RecordSpec(command=["python"], store=recorded.store, name="x", dtype="bfloat16")
