"""The memory layer on numbers made up for it: what grows is called growth, from its step on, and nothing else is."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddparity.judge._memory_growth import evaluation_growth, growth, trend_of
from ddparity.judge._memory_ranks import imbalance
from ddparity.judge._memory_run import Evaluation, MemoryRank, MemoryStep, size
from ddparity.judge.memory import band
from ddparity.trace import EventRow

MIB = 1 << 20


def step(number, end, *, start=None, parameters=0, **points):
    held = {"start": end if start is None else start, "end": end, **points}
    return MemoryStep(number, "malloc", held, {"parameters": parameters}, 300 * MIB, 0, ("", 0))


def rank_of(ends, rank=0, parameters=0):
    return MemoryRank(rank, [step(n, end, parameters=parameters) for n, end in enumerate(ends)], capacity=1 << 34)


@settings(max_examples=60, deadline=None)
@given(
    base=st.integers(1 * MIB, 4000 * MIB),
    first=st.integers(0, 300 * MIB),
    noise=st.lists(st.integers(0, 40 << 10), min_size=4, max_size=40),
)
def test_what_stays_level_is_no_growth(base, first, noise):
    """The first steps bring gradients and optimizer state; after that small things come and go."""
    assert trend_of(rank_of([base, base + first, *(base + first + each for each in noise)])) is None


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.sampled_from([0, 2 * MIB, 5 * MIB, 9 * MIB]), min_size=24, max_size=60).filter(
        lambda each: sum(each[:8]) >= sum(each[-8:]) and 0 in each[-8:] and 0 in each[8:16]
    )
)
def test_batches_of_many_lengths_are_no_growth(lengths):
    ends = [100 * MIB + length for length in lengths]
    trend = trend_of(rank_of(ends))
    rises = [later - earlier for earlier, later in pairwise(ends)][-len(ends) // 2 :]
    assert trend is None or sum(rise > 0 for rise in rises) >= 0.7 * len(rises)


@settings(max_examples=60, deadline=None)
@given(
    rise=st.integers(100 << 10, 50 * MIB),
    before=st.integers(0, 10),
    after=st.integers(5, 30),
    data=st.data(),
)
def test_growth_is_found_from_its_first_step_on(rise, before, after, data):
    level = [100 * MIB] * (before + 1)
    wobble = st.integers(-rise // 5, rise // 5)
    grown = [100 * MIB + n * rise + data.draw(wobble) for n in range(1, after + 1)]
    trend = trend_of(rank_of([*level, *grown]))
    if after >= (before + after) // 2 + 1:
        assert trend is not None
        assert trend.since == before
        assert trend.rise == pytest.approx(rise, rel=0.5)


@pytest.mark.parametrize(
    ("rises", "is_growth"),
    [
        ([81, 56, 8, 40, 76, 37, 78], False),  # measured in a healthy run: a C library that starts up
        ([80, 78, 81, 79, 80, 82, 80], True),  # of one size a step
        ([81, 56, 8, 40, 76, 37, 78] * 4, True),  # and if it goes on
        ([810, 560, 80, 400, 760, 370, 780], True),
    ],
)
def test_small_uneven_rises_of_a_few_steps_are_growth_only_where_something_holds_them(rises, is_growth):
    ends = [100 * MIB + (sum(rises[:n]) << 10) for n in range(len(rises) + 1)]
    mine = rank_of(ends)
    assert bool(growth({0: mine})) is is_growth
    row = EventRow(1, 0, 0, "holder", "kept", None, {"bytes": 60 << 10, "nodes": 4, "tensors": 1, "lines": []})
    assert growth({0: replace(mine, holders=[row])}) != []


def test_four_steps_are_too_few():
    assert trend_of(rank_of([MIB * n for n in range(4)])) is None


def test_a_rise_every_few_steps_is_growth_too():
    ends = [100 * MIB + (n // 5) * 4 * MIB for n in range(60)]
    trend = trend_of(rank_of(ends))
    assert trend is not None
    assert trend.rise == pytest.approx(0.8 * MIB, rel=0.3)


@pytest.mark.parametrize(
    ("nodes", "tensors", "code"),
    [(9, 0, "memory.graph_kept"), (9, 1, "memory.outputs_kept"), (0, 1, "memory.tensors_kept")],
)
def test_what_holds_it_gives_the_cause(nodes, tensors, code):
    ranks = {0: rank_of([n * MIB for n in range(8)])}
    told = {"bytes": tensors * MIB, "nodes": nodes, "tensors": tensors, "lines": ["train.py:7"], "function": "main"}
    ranks[0].holders = [EventRow(1, 0, 4, "holder", "total", None, told)]
    (found,) = growth(ranks)
    assert (found.cause.code, found.step, found.ranks, found.ranks_differ) == (code, 0, [0], False)
    assert "'total' (train.py:7)" in found.cause.text
    assert found.evidence["bytes_a_step"] == MIB
    assert found.evidence["runs_out_at_step"] > 1000


def test_growth_of_one_rank_differs():
    ranks = {0: rank_of([n * MIB for n in range(8)]), 1: rank_of([8 * MIB] * 8, rank=1)}
    (found,) = growth(ranks)
    assert (found.ranks, found.ranks_differ, found.cause.confidence) == ([0], True, "unexplained")


def test_an_evaluation_that_keeps_graphs():
    held = [n * 3 * MIB for n in range(8)]
    ranks = {0: MemoryRank(0, evaluations=[Evaluation(4, held, [3 * MIB] * 8, [MIB] * 8, 8)])}
    (found,) = evaluation_growth(ranks)
    assert (found.step, found.name, found.cause.code) == (4, "memory:evaluation", "memory.evaluation_keeps_graphs")


@pytest.mark.parametrize(("rise", "graphs"), [(MIB, 8), (3 * MIB, 0), (0, 8)])
def test_an_evaluation_may_keep_its_outputs(rise, graphs):
    held = [n * rise for n in range(8)]
    assert not evaluation_growth({0: MemoryRank(0, evaluations=[Evaluation(4, held, [rise] * 8, [MIB] * 8, graphs)])})


@settings(max_examples=60, deadline=None)
@given(extra=st.integers(0, 400), world=st.integers(2, 5), who=st.integers(0, 4))
def test_a_rank_that_holds_more(extra, world, who):
    who %= world
    ranks = {
        rank: rank_of([100 * MIB + extra * MIB * (rank == who)] * 6, rank, parameters=40 * MIB) for rank in range(world)
    }
    found = imbalance(ranks)
    assert bool(found) == (extra >= 20)  # half of the parameters
    if found:
        assert (found[0].ranks, found[0].ranks_differ, found[0].step) == ([who], True, 0)


def test_stages_may_hold_what_they_like():
    ranks = {0: rank_of([100 * MIB] * 6, 0, parameters=40 * MIB), 1: rank_of([10 * MIB] * 6, 1, parameters=4 * MIB)}
    assert not imbalance(ranks)


def test_words():
    assert [band(share) for share in (0.65, 0.8, 0.9, 0.98)] == ["STABLE", "STABLE", "TIGHT", "OOM-PRONE"]
    assert [size(each) for each in (12, 1 << 10, 3 * MIB // 2, 1 << 31)] == ["12 B", "1 KiB", "1.5 MiB", "2 GiB"]
