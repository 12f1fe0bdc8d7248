"""Which fault of the samples is which: training step by step, and evaluation."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_runs import event, run
from ddparity.judge import Status, data
from ddparity.judge._data_eval import evaluations
from ddparity.judge._data_metric import judge_metrics
from ddparity.trace import Event

FIRST = list(range(100, 124))


def codes(control, candidate):
    verdict, findings = data.judge(control, candidate)
    return verdict.status, [(f.step, str(f.phase), f.name, f.cause.code) for f in findings]


def shards(order, world, size):
    """Return ``ranks[rank][step]`` of a strided sampler over an order."""
    steps = [order[start : start + size] for start in range(0, len(order), size)]
    return [[step[rank::world] for step in steps] for rank in range(world)]


@given(st.permutations(FIRST), st.sampled_from([1, 2, 3, 4]))
def test_shares_of_the_controls_steps_pass(order, world):
    control = run(shards(order, 1, 12))
    status, found = codes(control, run(shards(order, world, 12)))
    assert (status, found) == (Status.PASS, [])


def test_an_epoch_that_replays_the_one_before():
    second = FIRST[::-1]
    control = run(shards(FIRST + second, 1, 12))
    status, found = codes(control, run(shards(FIRST + FIRST, 2, 12)))
    assert status is Status.DEVIATES
    assert found[0] == (2, "data", "sample_ids", "data.epoch_order")


def test_ranks_that_shuffle_apart():
    ranks = [shards(FIRST, 2, 12)[0], shards(FIRST[::-1], 2, 12)[1]]
    ranks[1][0][0] = ranks[0][0][0]
    assert codes(run(shards(FIRST, 1, 12)), run(ranks))[1][0] == (0, "data", "sample_ids", "data.sampler_differs")


def test_ranks_that_all_hold_everything_but_for_half_the_control():
    whole = shards(FIRST, 1, 6)[0]
    found = codes(run(shards(FIRST, 1, 12)), run([whole[:2], whole[:2]]))[1]
    assert found[0] == (0, "data", "sample_ids", "data.overlap")


def test_a_worker_that_copies_another():
    ranks = [[FIRST[:2] * 2], [FIRST[2:4] * 2]]
    control = run([[FIRST[:8]]])
    assert codes(control, run(ranks))[1][0][-1] == "data.workers_copy"


def test_padding_and_dropping_at_the_end_of_an_epoch():
    control = run([[FIRST[:12], FIRST[12:17]]])
    padded = run([[FIRST[:12:2], [*FIRST[12:17:2]]], [FIRST[1:12:2], [*FIRST[13:17:2], FIRST[0]]]])
    dropped = run([[FIRST[:12:2], FIRST[12:16:2]], [FIRST[1:12:2], FIRST[13:16:2]]])
    assert codes(control, padded)[1] == [(1, "data", "sample_ids", "data.padded")]
    assert codes(control, dropped)[1] == [(1, "data", "sample_ids", "data.dropped")]


def test_a_last_batch_that_was_dropped_whole():
    control = run([[FIRST[:12], FIRST[12:17]]])
    assert codes(control, run([[FIRST[:12:2]], [FIRST[1:12:2]]]))[1] == [(1, "data", "sample_ids", "data.dropped")]


def test_a_run_that_was_cut_short_has_dropped_nothing():
    control = run([[FIRST[:12], FIRST[12:17]]])
    assert codes(control, run([[FIRST[:12:2]], [FIRST[1:12:2]]], completed=False)) == (Status.PASS, [])


def test_samples_that_have_no_counterpart_settle_nothing():
    status, found = codes(run([[[1, 2, 3]]]), run([[[4, 5, 6]]]))
    assert (status, found) == (Status.INCONCLUSIVE, [])


EVALUATED = list(range(500, 541))


def evaluation(*shares):
    steps = [FIRST[rank :: len(shares)] for rank in range(len(shares))]
    return run([[step] for step in steps], evaluated={rank: {1: share} for rank, share in enumerate(shares)})


@given(st.permutations(EVALUATED), st.integers(1, 5))
def test_an_evaluation_may_be_shared_in_any_way(order, world):
    status, found = codes(evaluation(EVALUATED), evaluation(*(order[rank::world] for rank in range(world))))
    assert (status, found) == (Status.PASS, [])


@pytest.mark.parametrize("shares", [[EVALUATED, []], [EVALUATED, EVALUATED], [[], EVALUATED, EVALUATED]])
def test_an_evaluation_may_be_left_to_some_or_done_by_all(shares):
    assert codes(evaluation(EVALUATED), evaluation(*shares)) == (Status.PASS, [])


def test_padding_in_the_evaluation_is_counted():
    padded = [*EVALUATED, *EVALUATED[:3]]
    verdict, findings = data.judge(evaluation(EVALUATED), evaluation(*(padded[rank::4] for rank in range(4))))
    assert verdict.status is Status.DEVIATES
    found = findings[0]
    assert (found.step, found.phase, found.name, found.cause.code) == (1, "eval", "sample_ids", "eval.padded")
    assert found.evidence["evaluated_too_often"] == 3
    assert found.evidence["candidate_samples"] == 44


@pytest.mark.parametrize(
    ("shares", "code"),
    [
        ([EVALUATED[:20], EVALUATED[18:]], "eval.repeated"),
        ([EVALUATED[:20], EVALUATED[20:40]], "eval.dropped"),
        ([EVALUATED[:20], [*EVALUATED[20:38], 7, 8, 9]], "eval.other_samples"),
    ],
)
def test_other_faults_of_an_evaluation(shares, code):
    assert codes(evaluation(EVALUATED), evaluation(*shares))[1][0][-1] == code


def test_an_evaluation_of_nothing_that_the_control_knows_is_left_out():
    assert codes(evaluation(EVALUATED), evaluation([1, 2], [3, 4])) == (Status.PASS, [])


def test_a_split_that_each_rank_made_for_itself():
    whole = list(range(200, 220))
    control = run([[whole[:10]]], evaluated={0: {1: whole[10:]}})
    ranks = [[whole[:5]], [whole[5:8] + whole[10:12]]]
    split = {0: {1: whole[10:15]}, 1: {1: [*whole[15:18], *whole[8:10]]}}
    verdict, findings = data.judge(control, run(ranks, evaluated=split))
    assert verdict.status is Status.DEVIATES
    assert "data.split_differs" in {finding.cause.code for finding in findings}
    meant = run([[whole[:5]], [whole[5:10]]], evaluated={0: {1: whole[:10]}, 1: {1: whole[:10]}})
    assert data.judge(run([[whole[:10]]], evaluated={0: {1: whole[:10]}}), meant)[1] == []


@pytest.mark.parametrize(
    ("dropped", "shares", "matches"),
    [
        ((2, 2), ([0, 1, 2, 3], [4, 5, 0, 1]), True),  # as Accelerate pads: the first samples again
        ((0, 0), ([0, 1, 2, 3], [4, 5, 0, 1]), False),
        ((2, 0), ([0, 1, 2, 3], [4, 5, 0, 1]), False),  # one rank alone took something out
        ((1, 1), ([0, 1, 2, 3], [4, 5, 0, 1]), False),
        ((2, 2), ([0, 1, 2, 3], [4, 4, 0, 1]), False),  # one is missing
        ((2, 2), ([0, 1, 2, 3], [4, 5, 8, 9]), False),  # others in their place
    ],
)
def test_repeats_that_a_framework_took_out_of_the_results_are_no_finding(dropped, shares, matches):
    control = run([[[20, 21]]], evaluated={0: {1: [0, 1, 2, 3, 4, 5]}})
    candidate = run([[[20]], [[21]]], evaluated={rank: {1: share} for rank, share in enumerate(shares)})
    for rank, num in enumerate(dropped):
        if num:
            candidate.ranks[rank][1].events[Event.EVAL_DROPPED].append(event("eval_dropped", step=1, value=float(num)))
    (found,) = evaluations(control, candidate)
    assert found.matches == matches


def test_numbers_of_training_and_of_the_machine_are_not_compared_with_the_controls():
    sides = [run([[[20, 21]]], evaluated={0: {1: [0, 1]}}), run([[[20, 21]]], evaluated={0: {1: [0, 1]}})]
    for side, value in zip(sides, (1.0, 2.0), strict=True):
        told = side.ranks[0][1].events[Event.METRIC]
        told.append(event("metric", "loss", 1, value, compared=False))
        told.append(event("metric", "eval_runtime", 1, value))
        told.append(event("metric", "accuracy", 1, 0.5))
    held = evaluations(*sides)
    assert judge_metrics(*sides, held, []) == (1, [])
