"""The supervisor by itself, with commands that need neither torch nor a gateway."""

import json
import os
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from ddparity.gateway.supervisor import JobFolder, JobSpec, Phase, Result
from ddparity.gateway.supervisor._ranks import Ranks

pytestmark = pytest.mark.timeout(60)
TRAIN = Phase(name="train", command=["true"])


def prepare(tmp_path: Path, *phases: Phase, **settings: object) -> JobFolder:
    uid = uuid.uuid4().hex
    folder = JobFolder(tmp_path / uid)
    env = {"PATH": os.environ["PATH"], "DDPARITY_JOB": uid}
    spec = JobSpec(uid=uid, job_id="x", phases=list(phases), env=env, cwd=str(folder.root / "work"), **settings)
    folder.create(spec)
    return folder


def start(folder: JobFolder) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "ddparity.gateway.supervisor", str(folder.root)])


def run(folder: JobFolder) -> Result:
    assert start(folder).wait(timeout=40) == 0
    result = folder.result()
    assert result is not None
    return result


def test_phases_run_in_order_and_their_words_are_kept(tmp_path: Path) -> None:
    gate = Phase(name="gate", command=["sh", "-c", "exit 3"], passes={0: "PASS", 3: "INCONCLUSIVE"}, watched=False)
    verdict = Phase(name="verdict", command=["sh", "-c", "exit 1"], passes={1: "DEVIATES"}, optional=True)
    result = run(prepare(tmp_path, gate, TRAIN, verdict))
    assert (result.state, result.exit_code, result.error) == ("COMPLETED", 0, None)
    assert result.phases == {"gate": "INCONCLUSIVE", "train": "PASS", "verdict": "DEVIATES"}


def test_a_cancel_after_the_work_is_done_changes_nothing_about_it(tmp_path: Path) -> None:
    verdict = Phase(name="verdict", command=["sleep", "30"], optional=True, watched=False)
    folder = prepare(tmp_path, TRAIN, verdict)
    process = start(folder)
    while (folder.progress() is None) or folder.progress().phase != "verdict":
        time.sleep(0.02)
    folder.request_cancel("cancelled by ann")
    assert process.wait(timeout=30) == 0
    result = folder.result()
    assert result is not None
    assert (result.state, result.phases) == ("COMPLETED", {"train": "PASS", "verdict": "INCONCLUSIVE"})


def test_a_cancel_before_the_start_starts_nothing(tmp_path: Path) -> None:
    folder = prepare(tmp_path, Phase(name="train", command=["touch", str(tmp_path / "ran")]))
    folder.request_cancel("cancelled by ann")
    result = run(folder)
    assert (result.state, result.error, (tmp_path / "ran").exists()) == ("CANCELLED", "cancelled by ann", False)


def test_a_command_that_cannot_be_started_is_a_failure(tmp_path: Path) -> None:
    result = run(prepare(tmp_path, Phase(name="train", command=["no-such-program"], attempts=3)))
    assert (result.state, len(result.attempts)) == ("FAILED", 1)
    assert "'no-such-program' cannot be started" in str(result.error)


def test_a_fault_of_the_supervisor_is_told_as_one(tmp_path: Path) -> None:
    folder = prepare(tmp_path, TRAIN)
    (folder.root / "logs").rmdir()
    (folder.root / "logs").write_text("in the way")
    result = run(folder)
    assert (result.state, "the supervisor failed: " in str(result.error)) == ("FAILED", True)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"uid": 1}', b"\xff" * 10, b" " * (5 << 20)])
def test_a_damaged_file_is_no_job_and_no_result(tmp_path: Path, content: bytes) -> None:
    folder = prepare(tmp_path, TRAIN)
    folder.result_path.write_bytes(content)
    assert folder.result() is None
    folder.result_path.unlink()
    folder.spec_path.write_bytes(content)
    assert start(folder).wait(timeout=30) == 2


def test_five_supervisors_of_one_job_run_it_once(tmp_path: Path) -> None:
    command = ["sh", "-c", f"echo run >> {tmp_path / 'runs'}; sleep 1"]
    folder = prepare(tmp_path, Phase(name="train", command=command))
    codes = sorted(each.wait(timeout=40) for each in [start(folder) for _ in range(5)])
    assert codes[0] == 0
    assert set(codes[1:]) <= {75, 76}
    assert (tmp_path / "runs").read_text() == "run\n"


@pytest.mark.parametrize(
    ("listed", "said"),
    [
        ({"0": {"exit_code": 2, "time": 5.0}}, "rank 0 raised SystemExit: 2"),
        ({"0": {"exit_code": 1, "time": 5.1}, "1": {"exit_code": -9, "time": 5.0}}, "rank 1 was killed by SIGKILL"),
        ({}, "rank 1 ended without a word: it was killed, or it left by os._exit"),
    ],
)
def test_a_rank_that_the_launcher_ended_is_not_the_first_to_blame(tmp_path: Path, listed: object, said: str) -> None:
    for rank in range(2):
        mark = {"pid": 2**22 + rank, "start": 1, "time": 1.0}
        (tmp_path / f"rank-{rank:05d}.json").write_text(json.dumps(mark))
    (tmp_path / "ending-00000.json").write_text(json.dumps({"finished": False, "time": 4.9, "error": "SystemExit: 2"}))
    (tmp_path / "failures-0.json").write_text(json.dumps(listed))
    ranks = Ranks(tmp_path, 2)
    ranks.look()
    assert set(ranks.died) == {0, 1}
    assert ranks.first_error() == said
