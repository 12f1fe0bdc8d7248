"""``ddparity hang`` on runs that hang at this moment: who answers, is stopped or keeps the GIL, and who waits."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ddparity.trace._ring_format import Field
from ddparity.trials import Store
from ddparity.trials._live import quiet_seconds, running_rings

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]
SCRIPTS = Path(__file__).parent / "scripts"
DDPARITY = str(Path(sys.executable).with_name("ddparity"))
LAUNCHER = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


@contextmanager
def running(store: Path, fault: str, quiet_for: float) -> Iterator[dict[int, int]]:
    """Record a fault until both ranks have been quiet for so long; hand out their processes, and end the run."""
    command = [DDPARITY, "record", "--store", str(store), "--name", fault, "--", *LAUNCHER]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "FAULT_TIMEOUT": "60"}
    with (store.parent / "output").open("wb") as output:
        recording = subprocess.Popen([*command, str(SCRIPTS / "comm_faults.py"), fault], env=env, stderr=output)
    try:
        yield wait_for(store, quiet_for)
    finally:
        recording.send_signal(signal.SIGTERM)
        recording.wait(40)


def wait_for(store: Path, quiet_for: float) -> dict[int, int]:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        time.sleep(0.1)
        trials = [*(store / "trials").glob("*")]
        rings = running_rings(trials[0]) if trials else []
        begun = [ring for ring in rings if ring[Field.NUM_RECORDS] > 4]
        if len(begun) == 2 and all(quiet_seconds(ring) >= quiet_for for ring in begun):
            return {ring.rank: ring[Field.PID] for ring in begun}
    raise AssertionError("the ranks never came to the fault")


def hang(*arguments: str) -> tuple[int, dict[str, Any]]:
    command = [DDPARITY, "hang", *arguments, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def test_a_rank_that_does_not_come_is_named_with_its_line_while_it_hangs_and_afterwards(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with running(store, "missing", 2.5) as pids:
        code, told = hang("--store", str(store), "missing")
        by_pid = hang(str(pids[1]))[1]
    assert (code, told["hangs"]) == (1, True)
    assert [each["answers"] for each in told["processes"]] == [True, True]
    first = told["findings"][0]
    assert (first["cause"]["code"], first["ranks"]) == ("collective.late", [1])
    assert "all_reduce" in first["evidence"]["rank 0"]
    assert "in missing" in first["evidence"]["rank 0"]
    assert "in missing" in first["evidence"]["rank 1"]
    assert by_pid["trial"] == told["trial"]
    code, told = hang("--store", str(store), "missing")
    assert (code, told["hangs"], len(told["ranks"])) == (1, False, 2)
    assert Store(store).find("missing").name == told["trial"]
    assert f"next: ddparity hang --store {store} {told['trial']}" in (tmp_path / "output").read_text()


def test_native_code_that_keeps_the_gil_is_told_from_a_stopped_process(tmp_path: Path) -> None:
    with running(tmp_path / "store", "gil_held", 2.5):
        code, told = hang("--store", str(tmp_path / "store"), "gil_held")
    first = told["findings"][0]
    assert (code, first["cause"]["code"], first["ranks"]) == (1, "rank.gil_held", [1])
    assert [each["answers"] for each in told["processes"]] == [True, False]
    assert "all_reduce" in first["evidence"]["rank 0"]


def test_a_stopped_process_is_called_stopped(tmp_path: Path) -> None:
    with running(tmp_path / "store", "stopped", 2.5) as pids:
        code, told = hang("--store", str(tmp_path / "store"), "stopped")
        os.kill(pids[1], signal.SIGCONT)
    first = told["findings"][0]
    assert (code, first["cause"]["code"], first["ranks"]) == (1, "rank.stopped", [1])


def test_a_run_that_moves_is_said_to_move(tmp_path: Path) -> None:
    with running(tmp_path / "store", "goes_on", 0.0):
        code, told = hang("--store", str(tmp_path / "store"), "goes_on")
    assert (code, told["hangs"], told["findings"]) == (0, False, [])
