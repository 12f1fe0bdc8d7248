"""The memory layer on real trainings, each with one fault: what is found, from which step on, and what holds it."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from capture_harness import SCRIPTS
from ddparity.judge import Finding, Status, Verdict, compare_trials

pytestmark = pytest.mark.slow
SCRIPT = str(SCRIPTS / "memory_faults.py")
LAUNCHER = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
Judge = Callable[..., Verdict]


@pytest.fixture(scope="module")
def judge(recorded: Callable[..., Any]) -> Judge:
    """Return what compares a run with a fault with the control without one."""
    python = ["env", "OMP_NUM_THREADS=1", sys.executable]

    def judged(fault: str, *, ranks: int = 1) -> Verdict:
        control = recorded("memory-none", [*python, SCRIPT, "none"], control=True)
        launcher = LAUNCHER if ranks > 1 else []
        trial = recorded(f"memory-{fault}-{ranks}", [*python, *launcher, SCRIPT, fault])
        store = recorded.store
        return compare_trials(store.path(control.id), store.path(trial.id))

    return judged


def first(verdict: Verdict) -> Finding:
    found = verdict.first("memory")
    assert found is not None, verdict.layers
    assert verdict.layers["memory"].status is Status.DEVIATES
    assert found.phase == "memory"
    return found


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_healthy_run_passes(judge: Judge, ranks: int) -> None:
    verdict = judge("none", ranks=ranks)
    assert verdict.layers["memory"].status is Status.PASS, verdict.layers["memory"]
    assert not verdict.partial_reasons
    assert "STABLE" in verdict.layers["memory"].reason


@pytest.mark.parametrize(
    ("fault", "code", "holder"),
    [
        ("graph", "memory.graph_kept", "total"),
        ("outputs", "memory.outputs_kept", "kept"),
        ("detached", "memory.tensors_kept", "kept"),
        ("cache", "memory.tensors_kept", "net.cache"),
        ("hook", "memory.outputs_kept", "seen"),
    ],
)
def test_growth_is_told_with_what_holds_it(judge: Judge, fault: str, code: str, holder: str) -> None:
    found = first(judge(fault))
    assert (found.step, found.cause.code, found.evidence["held_by"]) == (0, code, holder)
    line = int(found.evidence["put_there"].partition(",")[0].rpartition(":")[2])
    put = Path(SCRIPT).read_text().splitlines()[line - 1]
    assert any(word in put for word in ("total +", ".append(", "self.cache["))


def test_growth_that_begins_late(judge: Judge) -> None:
    found = first(judge("late"))
    assert (found.step, found.evidence["held_by"]) == (4, "kept")


def test_an_evaluation_with_gradients(judge: Judge) -> None:
    found = first(judge("evaluation"))
    assert (found.step, found.cause.code) == (4, "memory.evaluation_keeps_graphs")


def test_a_rank_with_an_extra_copy(judge: Judge) -> None:
    found = first(judge("rank0_copy", ranks=2))
    assert (found.cause.code, found.ranks, found.ranks_differ) == ("memory.rank_holds_more", [0], True)
    assert found.evidence["extra_bytes"] == pytest.approx(24 << 20, rel=0.1)


@pytest.mark.parametrize(
    ("fault", "step", "code"),
    [
        ("retain_graph", 1, "memory.graph_retained"),
        ("last_batch", 8, "memory.more_than_control"),
        ("long_sequence", 5, "memory.more_than_control"),
        ("large_evaluation", 4, "memory.evaluation_beyond_control"),
    ],
)
def test_a_step_that_needs_more_than_the_control(judge: Judge, fault: str, step: int, code: str) -> None:
    found = first(judge(fault, ranks=2))
    assert (found.step, found.cause.code) == (step, code)


def test_one_rank_runs_out_of_memory(judge: Judge) -> None:
    verdict = judge("limit", ranks=2)
    found = first(verdict)
    assert (found.step, found.cause.code, found.name) == (5, "memory.out_of_memory", "memory:activations")
    assert (found.ranks, found.ranks_differ) == ([1], True)
    assert verdict.first("communication") is None, "what the other rank's collective reports follows from it"


def test_an_error_of_memory_that_is_raised_on_one_rank(judge: Judge) -> None:
    verdict = judge("raised", ranks=2)
    found = first(verdict)
    assert (found.step, found.cause.code, found.ranks) == (4, "memory.out_of_memory", [1])
    assert found.evidence["error"].startswith("OutOfMemoryError at memory_faults.py:")
    assert verdict.layers["communication"].status is Status.DEVIATES
    others = [each for each in verdict.findings if each.layer == "communication"]
    assert others[0].follows == verdict.findings.index(found)
    assert all(each.follows is not None for each in others)


def test_numbers_that_are_kept_are_no_growth(judge: Judge) -> None:
    assert judge("numbers", ranks=2).layers["memory"].status is Status.PASS


def test_which_rank_a_long_sequence_is_on_is_told(judge: Judge) -> None:
    found = first(judge("long_sequence", ranks=2))
    assert (found.ranks, found.ranks_differ, found.name) == ([1], True, "memory:activations")
