"""Real gloo ranks with one fault of communication each: recorded without their knowing, and explained."""

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ddparity.judge import Finding
from ddparity.judge._comm_links import links
from ddparity.judge._comm_run import load_comm
from ddparity.judge.communication import examine, examine_trial
from ddparity.trace import TrialStatus

SCRIPTS = Path(__file__).parent / "scripts"
LAUNCHER = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]

Judged = Callable[..., tuple[Any, int, list[Finding]]]


@pytest.fixture(scope="module")
def judged(recorded: Callable[..., Any]) -> Judged:
    """Return a function that records a script with a fault, and examines its calls."""

    def judge(script: str, fault: str, **spec: Any) -> tuple[Any, int, list[Finding]]:
        facts = recorded(f"{script}-{fault}", [*LAUNCHER, str(SCRIPTS / f"{script}.py"), fault], **spec)
        folder = recorded.store.path(facts.id)
        checked, _ = examine(load_comm(folder), status=facts.status)
        _, found = examine_trial(folder, status=facts.status)
        left = [note for note in facts.notes if "outlived" in note]
        assert not left or facts.status is not TrialStatus.COMPLETED
        return facts, checked, found

    return judge


def test_a_healthy_run_of_many_kinds_of_calls_agrees(judged: Judged) -> None:
    facts, checked, found = judged("comm_faults", "healthy")
    assert facts.status is TrialStatus.COMPLETED
    assert [finding.cause.code for finding in found] == []
    assert checked > 30


# Fault, whether the run ends well all the same, and the cause.
FAULTS = [
    ("reduce_op", True, "collective.reduce_op", [0, 1]),
    ("size", False, "collective.size", [0, 1]),
    ("exits", False, "rank.exited", [1]),
]
MORE = [
    ("swapped_operation", False, "collective.operation", [0, 1]),
    ("swapped_order", True, "collective.order", [0, 1]),
    ("shape", True, "collective.shape", [0, 1]),
    ("dtype", False, "collective.dtype", [0, 1]),
    ("dtype_silent", True, "collective.dtype", [0, 1]),
    ("root", False, "collective.root", [0, 1]),
    ("layout", True, "collective.layout", [0, 1]),
    ("gaps", True, "collective.strided", [0, 1]),
    ("missing", False, "collective.late", [1]),
    ("extra", False, "collective.operation", [0, 1]),
    ("extra_later", False, "collective.extra", [0, 1]),
    ("gather_for_reduce", False, "collective.operation", [0, 1]),
    ("raises", False, "rank.raised", [1]),
    ("ends", False, "collective.left", [1]),
    ("killed", False, "rank.killed", [1]),
    ("stopped", False, "rank.stopped", [1]),
    ("groups_differ", False, "group.differs", [0, 1]),
    ("overwritten", True, "collective.overwritten", [0, 1]),
    ("never_waited", True, "collective.never_waited", [0, 1]),
    ("transfer", True, "collective.size", [0, 1]),
    ("tags", False, "collective.tag", [0, 1]),
]


@pytest.mark.parametrize(("fault", "ends_well", "code", "ranks"), FAULTS)
def test_a_fault_is_explained(judged: Judged, fault: str, ends_well: bool, code: str, ranks: list[int]) -> None:
    check(judged("comm_faults", fault), ends_well, code, ranks)


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "ends_well", "code", "ranks"), MORE)
def test_more_faults_are_explained(judged: Judged, fault: str, ends_well: bool, code: str, ranks: list[int]) -> None:
    check(judged("comm_faults", fault), ends_well, code, ranks)


def check(judged: tuple[Any, int, list[Finding]], ends_well: bool, code: str, ranks: list[int]) -> None:
    facts, _, found = judged
    assert (facts.status is TrialStatus.COMPLETED) == ends_well
    first = found[0]
    assert (first.cause.code, first.ranks) == (code, ranks)
    assert placed(first) >= {0, 1}, first.evidence  # the place of the call, of each side


def placed(finding: Finding) -> set[int]:
    """Return the ranks for which a finding names a line of the script."""
    found: set[int] = set()
    for key, value in finding.evidence.items():
        for name, text in value.items() if isinstance(value, dict) else [(key, value)]:
            if "comm_faults.py:" in str(text):
                named = [int(rank) for rank in re.findall(r"\d+", name)] if name.startswith("rank") else finding.ranks
                found.update(named or [])
    return found


TRAININGS = [
    ("reversed", "collective.order", "body.weight"),
    ("other_op", "collective.reduce_op", "body.weight"),
    ("skipped", "collective.shifted", "body.weight"),
    ("small_group", "group.too_small", "body.weight"),
    ("in_flight", "collective.overwritten", "body.weight"),
    ("unwaited", "collective.read_early", "body.weight"),
    ("killed", "rank.killed", "rank:1"),
    ("exits", "rank.exited", "rank:1"),
    ("raises", "rank.raised", "rank:1"),
    ("ddp_unused", "ddp.unused_parameters", "twin.weight"),
    ("slow_rank", "pace.straggler", "rank:1"),
    ("slow_loader", "pace.data_supply", "rank:1"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "code", "name"), TRAININGS)
def test_a_fault_of_step_2_of_a_training_is_found_there(judged: Judged, fault: str, code: str, name: str) -> None:
    _, _, found = judged("comm_training", fault)
    assert (found[0].cause.code, found[0].name, found[0].step) == (code, name, 2)


@pytest.mark.slow
def test_collectives_are_held_against_a_probe_of_the_link(judged: Judged, recorded: Callable[..., Any]) -> None:
    facts, _, found = judged("comm_faults", "sizes", probe=True)
    assert (found, [note for note in facts.notes if "probe" in note]) == ([], [])
    folder = recorded.store.path(facts.id)
    fits = links(load_comm(folder), load_comm(folder / "probe"))
    assert fits["world"]["bus_gb_per_s"] == pytest.approx(fits["world"]["gb_per_s"], abs=0.01)  # two ranks
    assert fits["probe, point to point"]["gb_per_s"] > 0
    assert 0.02 < fits["world"]["of_probe"] < 5


@pytest.mark.slow
def test_ranks_that_hold_more_now_one_and_now_the_other_are_told_as_imbalance(judged: Judged) -> None:
    _, _, found = judged("comm_training", "uneven_work")
    assert [finding.cause.code for finding in found] == ["pace.imbalance"]
    assert found[0].ranks == [0, 1]
    assert found[0].evidence["times_the_others"] == 7.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "code"),
    [
        ("other_port", "launch.rendezvous"),
        ("same_rank", "launch.duplicate_rank"),
        ("other_timeout", "launch.timeouts_differ"),
    ],
)
def test_a_wrong_start_is_found_before_any_step(judged: Judged, fault: str, code: str) -> None:
    _, _, found = judged("comm_training", fault)
    assert (found[0].cause.code, found[0].phase.value, found[0].step) == (code, "launch", None)


@pytest.mark.slow
def test_a_healthy_training_agrees(judged: Judged) -> None:
    _, checked, found = judged("comm_training", "none")
    assert found == []
    assert checked > 8


@pytest.mark.slow
def test_a_run_that_hangs_is_ended_and_explained(judged: Judged) -> None:
    facts, _, found = judged("comm_faults", "deadlock", hang_after_s=6.0, on_hang="stop")
    assert facts.status is TrialStatus.TIMED_OUT
    assert any("--on-hang stop" in note for note in facts.notes)
    assert found[0].cause.code == "collective.deadlock"
