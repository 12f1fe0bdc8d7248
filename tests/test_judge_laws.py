"""Laws of the judge, over trainings in numpy of any shape: no false alarm, no fault missed, each rightly named."""

import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from ddparity._errors import TraceError
from ddparity.judge import Status, Verdict, compare_trials
from synthetic import Fault, Training, as_control, write_trial

pytestmark = pytest.mark.timeout(180)
STREAMS = ("digests", "events", "samples")
ORDERS = ("strided", "blocks", "shuffled", "uneven")


def bounded(examples):
    return settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=[HealthCheck.too_slow],
        phases=[Phase.explicit, Phase.generate, Phase.target],  # shrinking takes minutes; --hypothesis-seed finds more
    )


@contextmanager
def trials(training: Training) -> Iterator[tuple[Path, Path]]:
    """Write the control and the candidate of a training."""
    folder = Path(tempfile.mkdtemp(prefix="laws-"))
    try:
        yield write_trial(as_control(training), folder / "control"), write_trial(training, folder / "candidate")
    finally:
        shutil.rmtree(folder)


def judged(training: Training) -> Verdict:
    with trials(training) as (control, candidate):
        return compare_trials(control, candidate)


def told(verdict: Verdict) -> str:
    """What a failed assertion should say."""
    first = verdict.first("numerics")
    return f"{verdict.layers['numerics']} {first}"


@st.composite
def trainings(draw, *, ranks=(1, 8), steps=(1, 4)) -> Training:
    world_size = draw(st.integers(*ranks))
    optimizer = draw(st.sampled_from(("sgd", "momentum", "adam")))
    micro = draw(st.integers(1, 3 if world_size < 5 else 1))
    return Training(
        world_size=world_size,
        widths=tuple(draw(st.lists(st.integers(1, 20), min_size=2, max_size=4))),
        steps=draw(st.integers(*steps)),
        micro=micro,
        batch=world_size * micro * draw(st.integers(2, 4)),
        order=draw(st.sampled_from(ORDERS)),
        optimizer=optimizer,
        lr=draw(st.sampled_from((0.001, 0.02))) if optimizer == "adam" else draw(st.sampled_from((0.01, 0.1))),
        weight_decay=draw(st.sampled_from((0.0, 0.1))),
        clip=draw(st.sampled_from((0.0, 0.05, 100.0))),
        seed=draw(st.integers(0, 2**16)),
        order_seed=draw(st.integers(0, 2**16)),
        noise=draw(st.sampled_from((0.0, 1.0, 3.0))),
        buffer=draw(st.booleans()),
    )


def with_copies(training: Training, copies: int) -> Training:
    """Let so many ranks hold the same samples, where the numbers allow it."""
    if training.world_size % copies or training.order == "uneven":
        return training
    return replace(training, copies=copies)


# -- (a) no false alarm ----------------------------------------------------------------------------------------------


CANCELS = Training(widths=(1, 1), steps=2, world_size=3, batch=12, optimizer="momentum", lr=0.01)
CROSSES_ZERO = Training(
    widths=(6, 3, 1), steps=2, world_size=2, batch=12, optimizer="momentum", lr=0.1, seed=1529, noise=3.0
)


@bounded(45)
@example(CANCELS, 1)
@example(replace(CANCELS, world_size=2, batch=8, noise=1.0), 1)
@example(CROSSES_ZERO, 2)
@given(trainings(), st.integers(1, 2))
def test_healthy_runs_pass_whatever_the_ranks_the_order_and_the_micro_batches(training, copies):
    verdict = judged(with_copies(training, copies))
    assert verdict.layers["numerics"].status is Status.PASS, told(verdict)
    assert not verdict.partial
    if copies == 1 or verdict.merge_plan["samples"] != "Replicate":  # DDP over copies wastes ranks: a data finding
        assert verdict.layers["data"].status is Status.PASS, verdict.layers["data"]


@bounded(8)
@given(trainings(ranks=(2, 4)))
def test_gradients_summed_by_hand_are_healthy_if_the_loss_is_divided_by_the_whole_batch(training):
    verdict = judged(replace(training, reduction="sum"))
    assert verdict.layers["numerics"].status is Status.PASS, told(verdict)
    assert verdict.merge_plan["reduction"] == "sum"


@bounded(4)
@given(trainings(ranks=(2, 3)))
def test_what_16_bits_may_hide_is_inconclusive(training):
    verdict = judged(replace(training, dtype="bfloat16"))
    assert verdict.layers["numerics"].status is Status.INCONCLUSIVE, told(verdict)
    assert "bfloat16" in verdict.layers["numerics"].reason


@bounded(3)
@given(trainings(ranks=(2, 2)))
def test_nothing_is_held_against_a_control_that_is_not_a_number(training):
    broken = replace(as_control(training), faults=(Fault(kind="nan", step=0),))
    with trials(training) as (control, _):
        ours = write_trial(broken, control.parent / "ours")
        verdict = compare_trials(ours, write_trial(broken, control.parent / "theirs"))
    assert verdict.layers["numerics"].status is Status.INCONCLUSIVE, told(verdict)
    assert "NaN or infinity" in verdict.layers["numerics"].reason


@pytest.mark.parametrize(("limit", "expected"), [(1e6, Status.PASS), (0.05, Status.DEVIATES)])
@pytest.mark.parametrize("clipped", ["control", "candidate"])
def test_clipping_on_one_side_alone_is_a_fault_where_it_cuts(tmp_path, clipped, limit, expected):
    training = Training(world_size=2)
    control, candidate = (
        replace(each, clip=limit if name == clipped else 0.0)
        for name, each in (("control", as_control(training)), ("candidate", training))
    )
    verdict = compare_trials(write_trial(control, tmp_path / "control"), write_trial(candidate, tmp_path / "candidate"))
    assert verdict.layers["numerics"].status is expected, told(verdict)
    first = verdict.first("numerics")
    assert (first.cause.code if first else None) == ("clip.missing" if limit < 1 else None)


# -- (b) faults ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kind:
    """How a fault is planted, and what the judge must say of it: phase, name, causes, whether ranks differ."""

    phase: str
    causes: tuple[str, ...]
    name: str = "first"  # the first parameter in backward order that is hit; "named"; or a name as it is
    differ: bool = False
    min_ranks: int = 2
    needs: tuple[tuple[str, object], ...] = ()
    some_names: bool = False
    one_rank: bool = False
    value: float = 2.0


WIDE = ("widths", (6, 24, 18, 12))
KINDS = {
    "unsynced": Kind("backward", ("grad.unsynced", "grad.none_synced"), differ=True, some_names=True),
    "summed": Kind("collective", ("grad.summed",)),
    "divided": Kind("collective", ("grad.double_averaged",)),
    "pairs": Kind("collective", ("grad.ranks_differ",), differ=True, needs=(("world_size", 4),), some_names=True),
    "low_precision": Kind("collective", ("grad.low_precision",), needs=(WIDE,)),
    "missing": Kind("backward", ("grad.missing",), some_names=True),
    "path": Kind("backward", ("grad.path",), "below", needs=(WIDE,)),
    "weighting": Kind("loss", ("loss.weighting",), "loss", needs=(("order", "uneven"), WIDE)),
    "init": Kind("init", ("init.differs",), "named", some_names=True),
    "init of one rank": Kind("init", ("init.ranks_differ",), "named", differ=True, some_names=True, one_rank=True),
    "lr": Kind("optimizer", ("opt.lr",), "lr"),
    "lr of one rank": Kind("optimizer", ("opt.lr",), "lr", one_rank=True),
    "weight_decay": Kind("optimizer", ("opt.hyper_parameter",), "weight_decay", value=0.37),
    "clip": Kind("clip", ("clip.norm",), "grad_norm", needs=(("clip", 0.05),), value=1.5),
    "clip of one rank": Kind(
        "clip", ("clip.local_norm",), "grad_norm", True, needs=(("clip", 0.05),), one_rank=True, value=1.5
    ),
    "clip_first": Kind(
        "clip", ("clip.before_reduction",), "grad_norm", True, needs=(("clip", 0.05), ("reduction", "mean"))
    ),
    "state": Kind(
        "optimizer", ("opt.ranks_differ",), "0.weight", True, needs=(("optimizer", "momentum"),), one_rank=True
    ),
    "count": Kind("optimizer", ("opt.step_count",), "0.weight", needs=(("optimizer", "adam"),)),
    "not_held": Kind("optimizer", ("opt.not_held",), some_names=True, min_ranks=1),
    "buffer": Kind("buffer", ("buffer.ranks_differ",), "0.running", True, needs=(("buffer", True),)),
    "nan": Kind("forward", ("nonfinite",), "layer"),
    "output": Kind("forward", ("forward.batch_coupled",), "layer", one_rank=True, value=1.02),
}


def plant(data, kind: str) -> tuple[Training, Fault]:
    """Draw a training and where the fault goes."""
    how = KINDS[kind]
    training = data.draw(trainings(ranks=(how.min_ranks, 4), steps=(2, 3)))
    training = replace(training, noise=min(training.noise, 1.0))
    if "clip" not in kind:
        training = replace(training, clip=0.0)
    training = replace(training, **dict(how.needs))
    batch = training.world_size * training.micro * 4
    names = training.parameters
    if how.some_names:
        names = data.draw(st.lists(st.sampled_from(names), min_size=1, max_size=len(names), unique=True))
    first = 1 if kind in ("state", "count") else 0
    step = 0 if kind.startswith("init") else data.draw(st.integers(first, training.steps - 1))
    fault = Fault(
        kind=kind.partition(" ")[0],
        step=step,
        names=tuple(names),
        layer=data.draw(st.integers(0, training.layers - 1)),
        ranks=(data.draw(st.integers(0, training.world_size - 1)),) if how.one_rank else None,
        value=how.value,
    )
    if kind == "path":  # the first layer has nothing below it
        fault = replace(fault, layer=data.draw(st.integers(1, training.layers - 1)))
    return replace(training, batch=batch, faults=(fault,)), fault


def expected_name(kind: str, training: Training, fault: Fault) -> str:
    rule, hit = KINDS[kind].name, fault.names or ()
    if rule == "first":
        return next(name for name in training.backward_order if name in hit)
    if rule == "named":
        return next(name for name in training.parameters if name in hit)
    if rule == "below":
        return f"{2 * (fault.layer - 1)}.bias"
    return str(2 * fault.layer) if rule == "layer" else rule


@pytest.mark.parametrize("skips", [(), (0,), (0, 1)])
def test_updates_that_a_gradient_scaler_skips_are_no_fault(tmp_path, skips):
    training = Training(world_size=2, steps=4, overflows=skips, noise=1.0)
    control = write_trial(as_control(training), tmp_path / "control")
    verdict = compare_trials(control, write_trial(training, tmp_path / "candidate"))
    assert verdict.layers["numerics"].status is Status.PASS, told(verdict)
    other = replace(training, faults=(Fault(kind="summed", step=3),))
    verdict = compare_trials(control, write_trial(other, tmp_path / "summed"))
    first = verdict.first("numerics")
    assert first is not None
    assert (first.step, first.cause.code) == (3, "grad.summed"), "infinities hide nothing that comes later"


@pytest.mark.parametrize("ranks", [(1,), None])
def test_an_update_that_some_ranks_skip_is_named(tmp_path, ranks):
    training = Training(world_size=2, overflows=(1,), faults=(Fault(kind="not_skipped", step=1, ranks=ranks),))
    control = write_trial(as_control(training), tmp_path / "control")
    first = compare_trials(control, write_trial(training, tmp_path / "candidate")).first("numerics")
    assert first is not None
    assert (first.step, first.phase, first.cause.code) == (1, "optimizer", "scaler.skipped")
    assert (first.ranks, first.ranks_differ) == (([1], True) if ranks else ([0, 1], False))


@pytest.mark.parametrize("kind", KINDS)
@bounded(4)
@given(st.data())
def test_a_fault_is_found_where_it_is_and_named_for_what_it_is(kind, data):
    training, fault = plant(data, kind)
    verdict = judged(training)
    assert verdict.layers["numerics"].status is Status.DEVIATES, told(verdict)
    first = verdict.first("numerics")
    assert first is not None
    assert (first.step, first.phase, first.name) == (
        fault.step,
        KINDS[kind].phase,
        expected_name(kind, training, fault),
    )
    assert first.cause.code in KINDS[kind].causes, told(verdict)
    assert first.ranks_differ is KINDS[kind].differ, told(verdict)
    assert ("Equal among themselves are ranks 0, 1; ranks 2, 3." in first.cause.text) is (kind == "pairs")
    assert all(finding.follows is not None for finding in verdict.findings if finding is not first)
    assert verdict.layers["data"].status is Status.PASS


@bounded(5)
@given(st.data())
def test_an_output_that_differs_between_ranks_with_the_same_samples(data):
    training = replace(data.draw(trainings(ranks=(4, 4), steps=(1, 2))), copies=2, order="strided", micro=1, batch=8)
    fault = Fault(kind="output", layer=data.draw(st.integers(0, training.layers - 1)), ranks=(1,), value=1.01)
    first = judged(replace(training, faults=(fault,))).first("numerics")
    assert first is not None
    assert (first.phase, first.name, first.cause.code) == ("forward", str(2 * fault.layer), "forward.ranks_differ")
    assert first.ranks_differ


@pytest.mark.parametrize(("kind", "cause"), [("samples", "data.other_samples"), ("overlap", "data.overlap")])
@bounded(4)
@given(st.data())
def test_other_samples_are_a_data_finding_and_no_numerics_finding(kind, cause, data):
    training = data.draw(trainings(ranks=(2, 4), steps=(2, 3)))
    step = data.draw(st.integers(1, training.steps - 1))
    fault = Fault(kind=kind, step=step, ranks=(1,) if kind == "samples" else None)
    verdict = judged(replace(training, batch=training.world_size * training.micro * 3, faults=(fault,)))
    assert verdict.layers["numerics"].status is Status.INCONCLUSIVE, told(verdict)
    first = verdict.first("data")
    assert first is not None
    assert (first.step, first.name, first.cause.code) == (step, "sample_ids", cause)


# -- (c) the same files, the same verdict ----------------------------------------------------------------------------


@bounded(5)
@given(trainings(ranks=(2, 4), steps=(1, 2)), st.booleans())
def test_a_verdict_depends_on_the_files_alone(training, faulty):
    faults = (Fault(kind="path", layer=training.layers - 1), Fault(kind="lr")) if faulty else ()
    with trials(replace(training, faults=faults)) as (control, candidate):
        verdict = msgspec.json.encode(compare_trials(control, candidate))
        assert msgspec.json.encode(compare_trials(control, candidate)) == verdict
        elsewhere = candidate.with_name("elsewhere")
        elsewhere.mkdir()
        for path in sorted(candidate.iterdir(), reverse=True):  # written in another order
            (shutil.copytree if path.is_dir() else shutil.copy)(path, elsewhere / path.name)
        assert msgspec.json.encode(compare_trials(control, elsewhere)) == verdict


# -- (d) trials that are not whole -----------------------------------------------------------------------------------


@st.composite
def partial_trainings(draw) -> Training:
    training = draw(trainings(ranks=(2, 4), steps=(2, 3)))
    rank = draw(st.integers(0, training.world_size - 1))
    if draw(st.booleans()):
        return replace(training, missing=(rank,))
    return replace(training, killed=(rank, draw(st.integers(0, training.steps - 1))))


@bounded(14)
@given(partial_trainings())
def test_a_healthy_run_that_was_cut_short_does_not_deviate_and_says_what_is_missing(training):
    verdict = judged(training)
    assert verdict.layers["numerics"].status in (Status.PASS, Status.INCONCLUSIVE), told(verdict)
    assert verdict.layers["data"].status in (Status.PASS, Status.NOT_TESTED), verdict.layers["data"]
    assert verdict.partial
    rank = training.missing[0] if training.missing else training.killed[0]
    assert any(f"rank {rank}" in reason for reason in verdict.partial_reasons), verdict.partial_reasons
    if training.killed and training.killed[1] > 0:
        assert verdict.layers["numerics"].status is Status.PASS, told(verdict)


@bounded(6)
@given(partial_trainings())
def test_a_fault_in_what_is_there_is_found_all_the_same(training):
    survivor = next(r for r in range(training.world_size) if r not in (*training.missing, *(training.killed or ())[:1]))
    training = replace(training, world_size=max(training.world_size, 3), batch=36 * training.micro)
    fault = Fault(kind="init", names=("0.weight",), ranks=(survivor,))
    first = judged(replace(training, faults=(fault,))).first("numerics")
    assert first is not None
    assert (first.step, first.phase, first.name) == (0, "init", "0.weight")


@bounded(6)
@given(trainings(ranks=(2, 2), steps=(2, 2)), st.data())
def test_streams_cut_at_any_byte_are_read_up_to_there_or_refused(training, data):
    with trials(training) as (control, candidate):
        stream = candidate / "rank-00001" / f"{data.draw(st.sampled_from(STREAMS))}.arrow"
        content = stream.read_bytes()
        stream.write_bytes(content[: data.draw(st.integers(1, len(content) - 1))])
        try:
            verdict = compare_trials(control, candidate)
        except TraceError:
            return
        assert verdict.partial
        assert verdict.layers["numerics"].status is not Status.DEVIATES, told(verdict)


# -- (e) layers that were not tested ---------------------------------------------------------------------------------


@bounded(3)
@given(trainings(ranks=(2, 2), steps=(1, 1)))
def test_layers_that_were_not_tested_do_not_change_the_status(training):
    verdict = judged(training)
    assert verdict.layers["memory"].status is Status.NOT_TESTED
    assert verdict.exit_status() is Status.PASS
    document = json.loads(msgspec.json.encode(verdict))
    assert set(document["layers"]) == {"numerics", "data", "memory", "communication"}
