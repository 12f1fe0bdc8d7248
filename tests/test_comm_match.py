"""Laws of comparing calls: the same program on every rank agrees; one change is found where it was made."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddparity.judge._comm_ends import mismatch
from ddparity.judge._comm_links import fitted, point_to_point
from ddparity.judge._comm_match import compare_group, left_loop
from ddparity.judge._comm_run import CommRun, Group, Member
from ddparity.trace._ring_format import CallFlag, Field, Kind
from ddparity.trace._rings import Call, Ring

KINDS = st.sampled_from([Kind.ALL_REDUCE, Kind.BROADCAST, Kind.ALL_GATHER, Kind.REDUCE_SCATTER, Kind.BARRIER])


def make(seq: int, kind: Kind = Kind.ALL_REDUCE, **changes: object) -> Call:
    made = Call(
        serial=seq, entered=seq, launched=0, waited=0, done=0, kind=kind, flags=CallFlag(0), group="world", seq=seq,
        step=0, dtype="float32", reduce_op="sum", root=-1, tag=0, numel=8, num_bytes=32, shape="2x4", layout="",
        name="", stack=("train.py:7 in main",), origin="", num_tensors=1, argument="",
    )  # fmt: skip
    return replace(made, **changes)


def run_of(programs: list[list[Call]]) -> tuple[Group, CommRun]:
    ranks = list(range(len(programs)))
    header = dict.fromkeys(Field, 0)
    members = {r: Member(r, Ring(Path(), {**header, Field.RANK: r}, [""], (), [], programs[r])) for r in ranks}
    group = Group("world", ranks, "gloo")
    for rank, calls in enumerate(programs):
        group.calls[rank] = {call.seq: call for call in calls}
    return group, CommRun(members, {"world": group}, {}, len(ranks))


@given(st.lists(KINDS, min_size=1, max_size=12), st.integers(2, 5))
def test_the_same_program_on_every_rank_agrees(kinds: list[Kind], num_ranks: int) -> None:
    program = [make(seq, kind) for seq, kind in enumerate(kinds, start=1)]
    assert compare_group(*run_of([program] * num_ranks)) == (len(kinds), None)


CHANGES = {
    "collective.operation": {"kind": Kind.ALL_TO_ALL},
    "collective.dtype": {"dtype": "int32"},
    "collective.reduce_op": {"reduce_op": "max"},
    "collective.size": {"numel": 9, "shape": "9"},
    "collective.shape": {"shape": "4x2"},
    "collective.layout": {"layout": "1x2"},
    "collective.root": {"root": 1},
}


@pytest.mark.parametrize("code", CHANGES)
@given(at=st.integers(1, 8), rank=st.integers(0, 2))
def test_one_change_is_found_where_it_was_made(code: str, at: int, rank: int) -> None:
    programs = [[make(seq) for seq in range(1, 9)] for _ in range(3)]
    programs[rank][at - 1] = replace(programs[rank][at - 1], **CHANGES[code])
    _, found = compare_group(*run_of(programs))
    assert found is not None
    assert (found.code, found.seq) == (code, at)


@given(at=st.integers(1, 7))
def test_swapped_calls_are_told_apart_by_parameter_or_argument(at: int) -> None:
    for field in ("name", "argument"):
        program = [make(seq, **{field: f"p{seq}"}) for seq in range(1, 9)]
        other = list(program)
        other[at - 1], other[at] = (replace(other[at], seq=at), replace(other[at - 1], seq=at + 1))
        _, found = compare_group(*run_of([program, other]))
        assert found is not None
        assert (found.code, found.seq) == ("collective.order", at)


def test_branches_that_hold_the_same_call_are_no_fault() -> None:
    """``if rank == 0: all_reduce(x) else: all_reduce(y)``: other places, other names, one and the same call."""
    programs = [
        [make(seq, stack=(f"train.py:{7 + rank} in main",), argument="xy"[rank]) for seq in range(1, 9)]
        for rank in (0, 1)
    ]
    assert compare_group(*run_of(programs)) == (8, None)


def test_uneven_exchanges_are_no_fault() -> None:
    calls = [[make(1, Kind.ALL_TO_ALL, numel=n, shape=str(n), flags=CallFlag.UNEVEN)] for n in (3, 5)]
    assert compare_group(*run_of(calls)) == (1, None)


def test_a_rank_that_makes_one_call_less_is_missed() -> None:
    programs = [[make(seq) for seq in range(1, 6)], [make(seq) for seq in range(1, 4)]]
    checked, found = compare_group(*run_of(programs))
    assert found is not None
    assert (checked, found.code, found.seq, found.absent) == (3, "collective.missing", 4, [1])


@pytest.mark.parametrize("steps", [0, 1, 3])
@pytest.mark.parametrize("changes", [{"numel": 1, "shape": "1"}, {"kind": Kind.BARRIER}, {"dtype": "int64"}])
def test_a_rank_that_makes_a_call_more_is_told_from_one_that_passes_another_size(steps: int, changes: dict) -> None:
    places = [("train.py:7 in main",), ("train.py:8 in main",)]
    program = [make(2 * step + i + 1, stack=places[i]) for step in range(steps) for i in (0, 1)]
    seq = 2 * steps + 1
    odd = make(seq, stack=("train.py:30 in log",), **changes)
    group, run = run_of([[*program, odd], [*program, make(seq, stack=places[0])]])
    _, found = compare_group(group, run)
    assert found is not None
    first = mismatch(run, found)
    assert (first.cause.code == "collective.extra") is (steps > 0), "without earlier calls either may be out of place"
    if steps:
        assert (first.cause.confidence, "rank 0" in first.cause.text) == ("likely", True)
        assert "train.py:30" in first.evidence["rank 0"]
    same = make(seq, stack=places[0], **changes)
    group, run = run_of([[*program, same], [*program, make(seq, stack=places[0])]])
    _, found = compare_group(group, run)
    assert found is not None
    assert mismatch(run, found).cause.code == found.code != "collective.extra"


def test_gradients_of_different_steps_are_shifted() -> None:
    programs = [
        [make(1, step=0, name="w"), make(2, step=1, name="w")],
        [make(1, step=0, name="w"), make(2, step=2, name="w")],
    ]
    _, found = compare_group(*run_of(programs))
    assert found is not None
    assert (found.code, found.seq) == ("collective.shifted", 2)


def test_a_call_behind_the_loop_is_told_from_one_inside() -> None:
    inside = make(1, stack=("train.py:7 in main @3", "train.py:20 in <module>"))
    behind = make(1, stack=("train.py:9 in main", "train.py:20 in <module>"))
    assert left_loop(behind, inside)
    assert not left_loop(inside, behind)
    assert not left_loop(inside, inside)


@given(st.floats(1.0, 1000.0), st.floats(0.01, 50.0))
def test_latency_and_bandwidth_are_fitted(alpha_us: float, gb_per_s: float) -> None:
    best = {size: 1e-6 * alpha_us + size / (1e9 * gb_per_s) for size in (8, 1 << 16, 1 << 24)}
    fit = fitted(best)
    assert fit is not None
    assert fit["alpha_us"] == pytest.approx(alpha_us, abs=0.06, rel=1e-3)
    assert fit["gb_per_s"] == pytest.approx(gb_per_s, abs=6e-4, rel=1e-3)


def test_nothing_is_fitted_where_the_sizes_are_alike_or_larger_ones_are_quicker() -> None:
    assert fitted({}) is None
    assert fitted({8: 1.0, 32: 2.0}) is None
    assert fitted({8: 2.0, 8000: 1.0}) is None


def test_a_transfer_takes_from_when_the_later_side_came_until_the_receiver_has_it() -> None:
    def transfer(kind: Kind, entered: int, done: int, size: int) -> Call:
        peer = 1 if kind is Kind.SEND else 0
        return make(1, kind, root=peer, entered=entered, done=done, num_bytes=size)

    programs = [
        [transfer(Kind.SEND, 0, 900, 8), transfer(Kind.SEND, 10_000, 11_000, 1008)],
        [transfer(Kind.RECV, 500, 1500, 8), transfer(Kind.RECV, 9000, 12_000, 1008)],
    ]
    assert point_to_point(run_of(programs)[1]) == {"alpha_us": 1.0, "gb_per_s": 1.0}
