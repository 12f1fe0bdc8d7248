"""Every case of the zoo that ends loudly comes to a verdict soon after its time-out, and leaves no process behind."""

import json
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ddparity.judge._comm_run import Member
from ddparity.judge.communication import examine_trial
from ddparity.trace import TrialStatus
from ddparity.trace._ring_format import Field

ZOO = Path(__file__).parents[1] / "zoo"
LAUNCHER = ["env", "OMP_NUM_THREADS=1", sys.executable, "-m", "torch.distributed.run", "--standalone"]
GRACE_SECONDS = 10.0
_TIMEOUT = re.compile(r"timedelta\(seconds=(\d+)\)")


def loud() -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (ZOO / "manifest.jsonl").read_text().splitlines()]
    return [row for row in rows if not row["silent"] and not row["benign"] and row["nproc"] > 1]


def left_of(folder: Path) -> list[int]:
    """Return the processes that carry this trial in their environment, as every process of its command does."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            environment = (entry / "environ").read_bytes()
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if str(folder).encode() in environment and state not in "ZX":
            found.append(int(entry.name))
    return found


def came_to_its_last_call(member: Member) -> float:
    """Return when a rank made its last call, in which it then waited; else when it began."""
    ring = member.ring
    return ring.wall(ring.calls[-1].entered if ring.calls else ring[Field.STARTED])


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="finds the processes of a trial in /proc")
@pytest.mark.parametrize("row", loud(), ids=lambda row: row["name"])
def test_a_loud_case_ends_in_a_verdict_in_time_and_leaves_nothing(row: dict[str, Any], recorded: Callable[..., Any]):
    script = ZOO / row["file"]
    told = _TIMEOUT.search(script.read_text())
    command = [*LAUNCHER, "--nproc-per-node", str(row["nproc"]), str(script), "--bug", row["name"], "--steps", "8"]
    facts = recorded(f"loud-{row['name']}", command)
    folder = recorded.store.path(facts.id)
    run, found = examine_trial(folder, status=facts.status)
    seconds = time.time() - min(map(came_to_its_last_call, run.members.values()))
    assert facts.status is TrialStatus.FAILED
    assert seconds < (int(told[1]) if told else 0.0) + GRACE_SECONDS
    assert left_of(folder) == []
    if row["layer"] != "memory":
        assert found, "no cause was found"
        assert found[0].follows is None
