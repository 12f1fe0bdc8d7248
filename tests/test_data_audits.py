"""Audits of what loaders delivered, on passes made to order; each shows that it can fail."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_runs import loader_pass, trial
from ddparity.judge import data
from ddparity.trace import TrialStatus

DDP = "DistributedDataParallel"


def audits(*passes, world=2, wrapper=DDP, status=TrialStatus.COMPLETED):
    found = data.audit_trial(trial(world, passes, wrapper=wrapper, status=status))
    return {audit.name: audit for audit in found}


def deviations(*passes, **settings):
    found = audits(*passes, **settings).values()
    return {a.name: a.finding.cause.code for a in found if a.finding is not None}


def sampler(rank, world, **more):
    return {"chain": ["BatchSampler", "DistributedSampler"], "num_replicas": world, "rank": rank, **more}


@given(st.integers(1, 60), st.integers(1, 5), st.integers(1, 7), st.randoms(use_true_random=False))
def test_shares_of_any_size_that_cover_the_dataset_pass(length, world, batch, random):
    order = list(range(length))
    random.shuffle(order)
    shares = [order[rank::world] for rank in range(world)]
    passes = [loader_pass(r, share, batch=batch, length=length, root_length=length) for r, share in enumerate(shares)]
    assert deviations(*passes, world=world) == {}


@given(st.integers(5, 60), st.integers(2, 4))
def test_distributed_samplers_padding_is_told_from_overlap(length, world):
    total = -(-length // world) * world
    order = [*range(length), *range(total - length)]
    settings = {"length": length, "root_length": length}
    passes = [loader_pass(r, order[r::world], sampler=sampler(r, world), **settings) for r in range(world)]
    assert deviations(*passes, world=world) == {}
    evaluated = [
        loader_pass(r, order[r::world], sampler=sampler(r, world), training=False, **settings) for r in range(world)
    ]
    assert deviations(*evaluated, world=world) == ({"shards": "eval.padded"} if total > length else {})


def test_a_sampler_seed_a_rank_overlaps_and_misses():
    rng = np.random.default_rng(0)
    orders = [rng.permutation(24) for _ in range(2)]
    passes = [
        loader_pass(r, order[r::2].tolist(), length=24, sampler=sampler(r, 2, seed=r)) for r, order in enumerate(orders)
    ]
    found = audits(*passes)["shards"].finding
    assert (found.cause.code, found.name, found.phase, found.step) == ("data.sampler_differs", "sample_ids", "data", 0)
    assert found.evidence["on_several_ranks"] == found.evidence["missing"] > 0
    assert found.evidence["samplers_differ"] == {"seed": [0, 1]}


def test_a_dataset_that_is_not_sharded():
    whole = list(range(12))
    passes = [loader_pass(rank, whole, length=12) for rank in range(2)]
    assert deviations(*passes) == {"shards": "data.overlap"}
    assert deviations(*passes, wrapper="") == {}  # tensor-parallel ranks are meant to hold the same
    by_hand = [loader_pass(rank, whole, length=12, content=1 + 100 * rank) for rank in range(2)]
    assert deviations(*by_hand) == {}  # the same indices mean other samples: cut by hand, or augmented
    evaluated = [loader_pass(rank, whole, length=12, training=False) for rank in range(2)]
    assert deviations(*evaluated) == {}


def test_a_stream_that_is_not_sharded_by_worker():
    copied = [[10 * r + i // 2 for i in range(8)] for r in range(2)]
    passes = [loader_pass(r, ids, stream=True, num_workers=2) for r, ids in enumerate(copied)]
    assert deviations(*passes) == {"shards": "data.workers_copy"}


def test_shares_of_too_many_ranks_cover_too_little():
    passes = [loader_pass(r, list(range(100))[r::4], length=100, sampler=sampler(r, 4)) for r in range(2)]
    assert deviations(*passes) == {"coverage": "data.not_covered"}
    padded = [*range(101), 0, 1, 2]  # of four shares, two of which nobody takes
    passes = [loader_pass(r, padded[r + 2 :: 4], length=101, sampler=sampler(r + 2, 4)) for r in range(2)]
    assert deviations(*passes) == {"coverage": "data.not_covered"}
    dropped = [loader_pass(r, list(range(96))[r::2], length=101, sampler=sampler(r, 2)) for r in range(2)]
    assert deviations(*dropped) == {}
    assert "5 of 101 samples came on no rank" in audits(*dropped)["coverage"].text


def epochs(orders, **more):
    return [
        loader_pass(r, order[r::2], epoch=e, step=3 * e, sampler=sampler(r, 2, shuffle=True, epoch=0), **more)
        for e, order in enumerate(orders)
        for r in range(2)
    ]


def test_a_look_at_the_first_batch_is_no_pass_of_the_training():
    orders = [[5, 3, 1, 0, 2, 4, 7, 6], [0, 1, 2, 3, 4, 5, 6, 7]]
    passes = []
    for rank in range(2):
        settings = {"sampler": sampler(rank, 2, shuffle=True), "length": 8}
        for step, order in ((0, orders[0]), (3, orders[1])):
            if step == 0 or rank == 0:  # the second look is rank 0's alone; it comes before the sampler knows its epoch
                peek = orders[0][rank::2][:3]
                passes.append(loader_pass(rank, peek, epoch=2 * step, step=step, ended=False, **settings))
            passes.append(loader_pass(rank, order[rank::2], epoch=2 * step + 1, step=step, **settings))
    found = audits(*passes)
    assert found["order"].text == "Data: pass 1 has an order of its own"
    assert deviations(*passes) == {}


def test_an_epoch_that_replays_the_order_of_the_one_before():
    order = [5, 3, 1, 0, 2, 4, 7, 6]
    found = audits(*epochs([order, order], length=8))["order"].finding
    assert (found.cause.code, found.step, found.evidence["sampler_epoch_by_rank"]) == (
        "data.epoch_order", 3, {"0": 0, "1": 0},
    )  # fmt: skip
    assert deviations(*epochs([order, order[::-1]], length=8)) == {}
    sequential = [
        loader_pass(r, order[r::2], epoch=e, sampler=sampler(r, 2, shuffle=False), length=8)
        for e in range(2)
        for r in range(2)
    ]
    assert deviations(*sequential) == {}


def test_uneven_batches_are_forecast():
    ended = [loader_pass(0, list(range(12))), loader_pass(1, list(range(12, 20)))]
    assert deviations(*ended, status=TrialStatus.TIMED_OUT) == {"batches": "data.uneven"}
    assert deviations(*ended) == {}  # it ended well: trained under Join, or stopped by number of steps
    begun = [loader_pass(0, [0], num_batches=3, ended=False), loader_pass(1, [1], num_batches=2, ended=False)]
    found = audits(*begun)["batches"].finding
    assert (found.cause.code, found.ranks) == ("data.uneven", [1])


def test_a_split_that_each_rank_made_for_itself():
    def split(*parts):
        passes = []
        for rank, (train, val) in enumerate(parts):
            passes.append(loader_pass(rank, train, loader=0, root_length=12, length=8, sampler=sampler(rank, 2)))
            passes.append(loader_pass(rank, val, loader=1, root_length=12, length=4, training=False))
        return deviations(*passes)

    rest, held_out = list(range(8)), [8, 9, 10, 11]
    assert split((rest[::2], held_out), (rest[1::2], held_out)) == {}
    assert "split" in split(([0, 1, 2, 3], [4, 5, 6, 7]), ([6, 7, 8, 9], [10, 11, 4, 5]))
    on_itself = split(([0, 1, 2], [2, 3]), ([3, 4, 5], [0, 1]))  # a training accuracy
    assert "split" not in on_itself


def drawn(before, after, first="a", worker=0):
    return {"worker": worker, "first": first, "streams": {"dataset.rng": (before, after)}}


@pytest.mark.parametrize(
    ("places", "same"),
    [
        ([(0, 0, [drawn("x", "y", "a", 0), drawn("x", "y", "b", 1)])], ["worker"]),
        ([(0, 0, [drawn("x", "y", "a")]), (1, 0, [drawn("x", "y", "b")])], ["rank"]),
        ([(0, 0, [drawn("x", "y", "a")]), (0, 1, [drawn("x", "y", "a")])], ["epoch"]),
        ([(0, 0, [drawn("x", "y", "a")]), (1, 0, [drawn("x", "y", "a")])], None),  # replicas of the same batch
        ([(0, 0, [drawn("x", "y", "a")]), (1, 0, [drawn("x", "z", "b")])], None),  # seeded anew for each sample
        ([(0, 0, [drawn("x", "y", "a", 0), drawn("u", "v", "b", 1)])], None),
    ],
)
def test_copied_random_streams(places, same):
    passes = [
        loader_pass(rank, list(range(4 * rank, 4 * rank + 4)), epoch=epoch, streams=streams)
        for rank, epoch, streams in places
    ]
    found = audits(*passes, world=2).get("random")
    if same is None:
        assert found.finding is None
    else:
        assert (found.finding.cause.code, found.finding.name) == ("data.rng_copied", "rng.augmentation")
        assert found.finding.evidence["same_among"] == same


def test_evaluation_may_draw_the_same_each_time():
    passes = [loader_pass(0, [0, 1], epoch=e, training=False, streams=[drawn("x", "y")]) for e in range(2)]
    assert deviations(*passes, world=1) == {}


def test_a_pass_that_was_begun_and_given_up_says_nothing():
    whole = [loader_pass(r, list(range(8))[r::2], length=8, sampler=sampler(r, 2)) for r in range(2)]
    begun = [loader_pass(r, [], epoch=1, ended=False, length=8, sampler=sampler(r, 2)) for r in range(2)]
    found = data.audit_trial(trial(2, [*whole, *begun], wrapper=DDP))
    assert {audit.status.value for audit in found} == {"PASS"}


def test_uneven_labels_are_told():
    passes = [loader_pass(r, list(range(4 * r, 4 * r + 4)), labels=[100 - 40 * r]) for r in range(2)]
    assert "different numbers of labels (batch 0: 100, 60)" in audits(*passes)["labels"].text
