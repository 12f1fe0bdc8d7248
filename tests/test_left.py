"""What a step leaves to the next one: parameters changed outside of the optimizer, buffers before the first step."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddparity.judge import Status, compare_trials
from ddparity.trace import Event, Site, read_trial
from synthetic import Fault, Training, as_control, write_trial

NOISE = 4.0


@pytest.fixture
def judged(tmp_path):
    """Write a training and its control, and compare them."""

    def judge(training, control=None):
        control = write_trial(control or as_control(training), tmp_path / "control")
        return compare_trials(control, write_trial(training, tmp_path / "candidate"))

    return judge


def first_of(verdict):
    first = verdict.first("numerics")
    assert first is not None, verdict.layers["numerics"]
    return first


# -- healthy ---------------------------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 4), st.integers(1, 4), st.sampled_from(["sgd", "momentum"]), st.booleans())
def test_parameters_averaged_in_place_of_gradients_are_healthy_where_that_is_the_same(
    tmp_path_factory, ranks, steps, optimizer, ends
):
    folder = tmp_path_factory.mktemp("averaged")
    training = Training(world_size=ranks, steps=steps, optimizer=optimizer, after="average", noise=NOISE)
    control = write_trial(as_control(training), folder / "control")
    candidate = write_trial(training, folder / "candidate")
    verdict = compare_trials(control, candidate)
    assert verdict.layers["numerics"].status is Status.PASS, verdict.first("numerics")
    assert verdict.findings == []
    assert (verdict.merge_plan["reduction"], verdict.merge_plan["proved"]) == ("after the step", True)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_ranks_that_update_a_share_each_and_hand_it_on_are_healthy(judged, optimizer):
    verdict = judged(Training(world_size=3, optimizer=optimizer, after="share", noise=NOISE))
    assert verdict.layers["numerics"].status is Status.PASS, verdict.first("numerics")


def test_a_parameter_that_no_rank_updates_is_named_where_they_share_the_update(judged):
    faults = (Fault(kind="not_held", names=("2.weight",)),)
    first = first_of(judged(Training(world_size=2, after="share", faults=faults)))
    assert (first.step, first.name) == (0, "2.weight")


def test_they_are_not_where_the_optimizer_is_not_linear(judged):
    first = first_of(judged(Training(world_size=2, optimizer="adam", after="average")))
    assert (first.step, first.phase, first.cause.code) == (0, "backward", "grad.none_synced")


def test_one_parameter_that_is_left_out_of_the_averaging_is_named(judged):
    faults = (Fault(kind="not_averaged", names=("2.weight",), step=1),)
    first = first_of(judged(Training(world_size=2, after="average", steps=4, faults=faults)))
    assert (first.step, first.phase) == (1, "backward")
    assert first.ranks_differ


def test_a_small_learning_rate_hides_no_gradient_that_is_not_reduced(judged):
    faults = (Fault(kind="unsynced", step=0), Fault(kind="left", step=0, ranks=(1,), value=1.0))
    first = first_of(judged(Training(world_size=2, lr=1e-9, faults=faults)))
    assert (first.step, first.phase) == (0, "backward")


@pytest.mark.parametrize("ranks", [2, 3])
def test_weights_clipped_after_every_step_on_both_sides_are_healthy(judged, ranks):
    verdict = judged(Training(world_size=ranks, after="clip", noise=NOISE))
    assert verdict.layers["numerics"].status is Status.PASS, verdict.first("numerics")


def test_weights_clipped_after_the_last_step_where_only_one_side_tells_are_healthy(judged):
    verdict = judged(Training(world_size=2, steps=1, after="clip"))
    assert verdict.layers["numerics"].status is Status.PASS, verdict.first("numerics")


# -- faults ----------------------------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(["", "clip"]), st.sampled_from(["0.weight", "2.bias", "4.weight"]), st.integers(0, 1))
def test_a_parameter_changed_on_one_rank_after_the_step_is_named_in_that_step(tmp_path_factory, after, name, step):
    folder = tmp_path_factory.mktemp("left")
    faults = (Fault(kind="left", names=(name,), step=step, ranks=(1,), value=0.5),)
    training = Training(world_size=2, steps=3, after=after, faults=faults, noise=NOISE)
    control = write_trial(as_control(training), folder / "control")
    first = first_of(compare_trials(control, write_trial(training, folder / "candidate")))
    assert (first.step, first.phase, first.name, first.cause.code) == (step, "optimizer", name, "opt.changed_on_ranks")
    assert (first.ranks, first.ranks_differ, first.site) == ([1], True, Site.PARAMETER_LEFT)
    assert 1 in first.evidence["changed_after_the_step_on"]
    if not after:
        assert (first.evidence["changed_after_the_step_on"], first.evidence["changed_in_control"]) == ([1], False)


def test_a_parameter_changed_alike_on_all_ranks_and_not_in_the_control_is_named(judged):
    faults = (Fault(kind="left", names=("2.weight",), step=1, value=0.5),)
    first = first_of(judged(Training(world_size=2, faults=faults)))
    assert (first.step, first.phase, first.name, first.cause.code) == (1, "optimizer", "2.weight", "opt.changed_after")
    assert not first.ranks_differ


def test_a_change_that_only_the_control_makes_is_named(judged):
    training = Training(world_size=2)
    first = first_of(judged(training, replace(as_control(training), after="clip")))
    assert (first.step, first.phase, first.name, first.cause.code) == (0, "optimizer", "0.weight", "opt.changed_after")
    assert (first.evidence["changed_after_the_step_on"], first.evidence["changed_in_control"]) == ([], True)


@pytest.mark.parametrize(("ranks", "code"), [((1,), "buffer_ranks_differ"), (None, "buffer_differs")])
def test_buffers_before_the_first_step(judged, ranks, code):
    training = Training(world_size=2, buffer=True, reduction="sum")
    verdict = judged(replace(training, faults=(Fault(kind="buffer_start", ranks=ranks),)))
    first = first_of(verdict)
    assert (first.step, first.phase, first.name, first.cause.code) == (0, "init", "0.running", f"init.{code}")


def test_buffers_that_a_wrapper_broadcasts_may_differ_before(judged):
    faults = (Fault(kind="buffer_start", ranks=(1,)),)
    verdict = judged(Training(world_size=2, buffer=True, faults=faults, steps=1))
    assert all(finding.phase != "init" for finding in verdict.findings)


def test_what_is_written_tells_settled_steps(tmp_path):
    trial = read_trial(write_trial(Training(world_size=2, after="clip"), tmp_path / "two"))
    settled = [e.step for e in trial.ranks[0].events if e.kind == Event.SETTLED]
    left = {row.step for row in trial.ranks[0].digests if row.site.site == Site.PARAMETER_LEFT}
    assert (settled, left) == ([0, 1], {0, 1, 2}), "after the last step training does not go on"
