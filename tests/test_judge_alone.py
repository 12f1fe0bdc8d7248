"""What a trial says of itself: each layer as far as it goes without a control, and its calls counted."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gateway_trials as made
import synthetic
from ddparity._errors import TraceError
from ddparity.judge import Status, check_and_measure, check_trial, compare_trials
from ddparity.judge._comm_table import tabulate
from ddparity.trace import ControlProof
from test_comm_match import KINDS, make, run_of


@pytest.mark.parametrize(
    ("status", "says"),
    [
        ("PROVED", Status.PASS),
        ("FAILED", Status.DEVIATES),
        ("NOT_PROVED", Status.NOT_TESTED),
        (None, Status.NOT_TESTED),
    ],
)
def test_the_numbers_of_a_trial_are_judged_by_its_proof_alone(tmp_path: Path, status: str | None, says: Status) -> None:
    proof = None if status is None else ControlProof(status=status, reason="because")
    control = made.write(tmp_path, made.CONTROL, "single", proof=proof)
    layer = check_trial(tmp_path / "trials" / control).layers["numerics"]
    assert layer.status is says
    assert layer.reason


def test_numbers_that_are_none_are_never_called_fine(tmp_path: Path) -> None:
    fault = synthetic.Fault(kind="nan", step=1)
    trial = made.write(tmp_path, synthetic.Training(world_size=2, faults=(fault,)), "nan")
    layer = check_trial(tmp_path / "trials" / trial).layers["numerics"]
    assert (layer.status, "NaN or infinity at step 1" in layer.reason) == (Status.INCONCLUSIVE, True)


def test_what_needs_no_control_is_what_the_comparison_says(tmp_path: Path) -> None:
    control = tmp_path / "trials" / made.write(tmp_path, made.CONTROL, "single")
    candidate = tmp_path / "trials" / made.write(tmp_path, made.SUMMED, "ddp")
    found = check_and_measure(candidate)
    verdict = compare_trials(control, candidate)
    for layer in ("memory", "communication"):
        assert found.check.layers[layer].status is verdict.layers[layer].status, layer
    codes = [each.cause.code for each in found.check.findings]
    assert codes == [each.cause.code for each in verdict.findings if each.layer == "memory"]
    for number, each in enumerate(found.check.findings):
        assert each.follows is None or each.follows < number
    assert found.pictures.memory is not None
    assert found.pictures.errors.cells == []


def test_a_trial_without_ranks_says_what_is_missing(tmp_path: Path) -> None:
    trial = made.write(tmp_path, synthetic.Training(world_size=2, missing=(0, 1)), "none")
    check = check_trial(tmp_path / "trials" / trial)
    assert check.partial
    with pytest.raises(TraceError):
        check_trial(tmp_path / "trials" / "nobody")


@given(
    programs=st.lists(st.lists(KINDS, max_size=30), min_size=1, max_size=6),
    groups=st.lists(st.sampled_from(["world", "a", "b"]), min_size=30, max_size=30),
)
def test_every_call_is_counted_once(programs: list, groups: list[str]) -> None:
    calls = [
        [make(n, kind, group=groups[n - 1], num_bytes=4) for n, kind in enumerate(kinds, start=1)] for kinds in programs
    ]
    _, run = run_of(calls)
    table = tabulate(run)
    assert [state.rank for state in table.ranks] == list(range(len(programs)))
    assert sum(state.calls for state in table.ranks) == sum(map(len, programs))
    most = {(row.group, row.op): row.most for row in table.rows}
    for (group, op), number in most.items():
        made_by = [sum(call.group == group and call.op == op for call in each) for each in calls]
        assert number == max(made_by)
        row = next(each for each in table.rows if (each.group, each.op) == (group, op))
        assert row.fewest <= row.most
        assert row.bytes == 4 * number
    assert len(most) == len({(call.group, call.op) for each in calls for call in each})
