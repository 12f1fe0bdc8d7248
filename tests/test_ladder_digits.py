"""The ladder on the digits workload: each planted fault stops it at the rung where such faults show.

Most climb only the rungs that their fault needs; ``pairs`` climbs all of them, and a second time from the store.
"""

import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

from ddparity.trials import Store
from ddparity.trials._ladder import LadderResult, climb
from ddparity.trials._rungs import LadderSpec

pytestmark = pytest.mark.timeout(300)
DIGITS = [
    "env",
    "OMP_NUM_THREADS=1",
    sys.executable,
    "-m",
    "ddparity.workloads.digits",
    "--batch-size",
    "{global_batch}",
]
IN_PARTS = ["--accum", "{accum}"]


def climbed(folder: Path, fault: str, nproc: tuple[int, ...], *more: str) -> LadderResult:
    command = [*DIGITS, "--fault", fault, *more]
    spec = LadderSpec(
        command=command, store=Store(folder), nproc=nproc, global_batch=32, accum=2, steps="2", timeout_s=120.0
    )
    return climb(spec, lambda line: print(line, flush=True))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "nproc", "more", "number", "variable", "codes"),
    [
        ("unseeded", (1, 2), IN_PARTS, 0, None, {None}),
        ("accum-sum", (1, 2), IN_PARTS, 2, "micro_batches", {"grad.scaled"}),
        ("stale-optimizer", (1, 2), [], 3, "launcher", {"opt.not_held"}),
        ("unsynced", (2, 4), [], 4, "world_size", {"grad.unsynced"}),
        ("summed", (2, 4), [], 4, "world_size", {"grad.summed"}),
        ("pairs", (1, 2, 4), IN_PARTS, 5, "world_size", {"grad.ranks_differ", "grad.wrong_reduction"}),
    ],
)
def test_a_planted_fault_stops_the_climb_at_its_rung(tmp_path, fault, nproc, more, number, variable, codes):
    result = climbed(tmp_path / "store", fault, nproc, *more)
    told = [(rung.number, rung.status, rung.reason) for rung in result.rungs]
    assert (result.status, result.stopped_at, result.variable) == ("DEVIATES", number, variable), told
    below = [rung.status for rung in result.rungs if rung.number < number and rung.status != "SKIPPED"]
    assert below == ["PASS"] * len(below), told
    finding = next(rung.finding for rung in result.rungs if rung.number == number)
    assert (None if finding is None else finding["cause"]["code"]) in codes
    if fault == "pairs":
        again = climbed(tmp_path / "store", fault, nproc, *more)
        assert (again.status, again.stopped_at) == ("DEVIATES", number)
        assert all(rung.reused for rung in again.rungs if rung.trial)
