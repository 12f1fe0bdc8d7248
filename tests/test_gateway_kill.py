"""Whatever is killed: the right final state, and no process left."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("fastapi")

from gateway_harness import Gateway, has_unshare, pids_of, tagged

pytestmark = pytest.mark.timeout(180)
STUBBORN = ["--seconds", "60", "--stubborn"]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    made = Gateway(tmp_path_factory.mktemp("kill") / "store").start()
    yield made
    made.stop()


def kill(folder: Path, *parts: str) -> None:
    pids = pids_of(folder)
    for part in parts:
        for pid in pids[part]:
            os.kill(pid, signal.SIGKILL)


MATRIX = [
    # who is killed, what the ranks are, the right state
    (("supervisor",), "cooperative", "LOST"),
    (("supervisor",), "stubborn", "LOST"),
    (("agent",), "cooperative", "FAILED"),
    (("agent",), "stubborn", "FAILED"),
    (("agent",), "bare", "FAILED"),
    (("rank",), "cooperative", "FAILED"),
    (("rank",), "stubborn", "FAILED"),
    (("rank",), "bare", "FAILED"),
    (("supervisor", "agent"), "stubborn", "LOST"),
    (("supervisor", "agent", "ranks"), "stubborn", "LOST"),
]
ARGS = {"cooperative": ["--seconds", "60"], "stubborn": STUBBORN, "bare": [*STUBBORN, "--bare"]}


@pytest.mark.parametrize(
    ("parts", "kind", "state"), MATRIX, ids=[f"{'+'.join(parts)}-{kind}" for parts, kind, _ in MATRIX]
)
def test_kill(gateway: Gateway, parts: tuple[str, ...], kind: str, state: str) -> None:
    job = gateway.submit(f"{'-'.join(parts)}-{kind}", args=ARGS[kind])
    folder = gateway.wait_ranks(job)
    before = tagged(folder.name)
    kill(folder, *parts)
    start = time.monotonic()
    found = gateway.wait(job)
    print(f"\n{'+'.join(parts)} {kind}: {found['status']} after {time.monotonic() - start:.2f} s: {found['error']}")
    assert (found["status"], len(before) >= 3) == (state, True)
    assert tagged(folder.name) == []
    assert stays() == []
    if parts == ("rank",):  # the agent may be the faster one to collect its exit status
        assert found["error"].startswith(("rank 1 was killed by SIGKILL", "rank 1 ended without a word"))
    if parts == ("agent",):
        assert found["error"] == "the launcher was killed by SIGKILL"
    assert time.monotonic() - start < 20


def stays() -> list[int]:
    """Return the grandchildren that the script starts, found by their command: a bare one has no tag."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                line = Path("/proc", name, "cmdline").read_bytes()
            except OSError:
                continue
            if b"signal.SIG_IGN); time.sleep(300)" in line and b"-S" in line.split(b"\0"):
                found.append(int(name))
    return found


def test_nobody_elses_process_is_touched(gateway: Gateway) -> None:
    """Not one with another job's tag, nor one without; not even where a tag begins like the job's."""
    job = gateway.submit("careful", args=STUBBORN)
    folder = gateway.wait_ranks(job)
    command = [sys.executable, "-S", "-c", "import time; time.sleep(100)"]
    tags = [f"{folder.name}0", folder.name[:-1], "other"]
    strangers = [subprocess.Popen(command, env={"DDPARITY_JOB": tag}) for tag in tags]
    strangers.append(subprocess.Popen(command, env={"XDDPARITY_JOB": folder.name}, start_new_session=True))
    try:
        kill(folder, "supervisor", "agent")
        assert gateway.wait(job)["status"] == "LOST"
        assert (tagged(folder.name), [each.poll() for each in strangers]) == ([], [None] * 4)
    finally:
        for each in strangers:
            each.kill()
            each.wait()


@pytest.mark.parametrize("kind", ["cooperative", "stubborn"])
def test_cancel(gateway: Gateway, kind: str) -> None:
    job = gateway.submit(f"cancel-{kind}", args=ARGS[kind])
    folder = gateway.wait_ranks(job)
    start = time.monotonic()
    assert gateway.http.post(f"{gateway.url}/api/v1/jobs/{job}/cancel").json()["cancel_requested"]
    found = gateway.wait(job)
    print(f"\ncancel {kind}: {found['status']} after {time.monotonic() - start:.2f} s")
    assert (found["status"], found["error"]) == ("CANCELLED", "cancelled by local")
    assert (tagged(folder.name), stays()) == ([], [])


def test_a_daemon_that_a_finished_job_leaves_is_ended(gateway: Gateway) -> None:
    job = gateway.submit("daemon", args=["--daemon"])
    assert gateway.wait(job)["status"] == "COMPLETED"
    assert (tagged(gateway.folder(job).name), stays()) == ([], [])
    end = gateway.get(f"/{job}/events").json()["events"][-1]
    assert end["detail"]["swept"] == 2


def test_a_slot_is_free_only_when_nothing_is_left(gateway: Gateway) -> None:
    job = gateway.submit("all-slots", world_size=8, args=STUBBORN)
    waiting = gateway.submit("after-it", args=[])
    folder = gateway.wait_ranks(job, 8)
    assert gateway.status(waiting)["status"] == "PENDING"
    gateway.http.post(f"{gateway.url}/api/v1/jobs/{job}/cancel")
    gateway.wait(waiting, "RUNNING", "COMPLETED")
    assert tagged(folder.name) == []
    assert gateway.wait(waiting)["status"] == "COMPLETED"


@pytest.mark.parametrize("kind", ["cooperative", "stubborn"])
def test_kill_the_gateway(tmp_path: Path, kind: str) -> None:
    """A running job runs on; one that ends meanwhile has its true result; a lost one is told as LOST."""
    gateway = Gateway(tmp_path / "store").start()
    try:
        runs = gateway.submit("runs", args=ARGS[kind])
        ends = gateway.submit("ends", args=["--seconds", "2"])
        lost = gateway.submit("lost", args=ARGS[kind])
        folders = {job: gateway.wait_ranks(job) for job in (runs, ends, lost)}
        gateway.kill()
        ranks = pids_of(folders[runs])["ranks"]
        kill(folders[lost], "supervisor")
        time.sleep(3)
        assert set(ranks) <= set(tagged(folders[runs].name))
        gateway.start()
        assert gateway.wait(ends)["status"] == "COMPLETED"
        assert gateway.status(ends)["metrics"]["final_accuracy"] == 0.75
        found = gateway.wait(lost)
        assert (found["status"], tagged(folders[lost].name)) == ("LOST", [])
        assert gateway.status(runs)["status"] == "RUNNING"
        assert set(ranks) <= set(tagged(folders[runs].name))
        gateway.http.post(f"{gateway.url}/api/v1/jobs/{runs}/cancel")
        assert gateway.wait(runs)["status"] == "CANCELLED"
        assert (tagged(folders[runs].name), stays()) == ([], [])
    finally:
        gateway.stop()


@pytest.mark.parametrize("parts", [("rank",), ("agent",), ("supervisor", "agent")], ids="+".join)
def test_kill_where_no_cgroup_is_permitted(tmp_path: Path, parts: tuple[str, ...]) -> None:
    gateway = Gateway(tmp_path / "store", env={"DDPARITY_GATEWAY_ISOLATION": "walk"}).start()
    try:
        job = gateway.submit("walked", args=[*STUBBORN, *([] if "supervisor" in parts else ["--bare"])])
        folder = gateway.wait_ranks(job)
        kill(folder, *parts)
        assert gateway.wait(job)["status"] == ("LOST" if "supervisor" in parts else "FAILED")
        assert (tagged(folder.name), stays()) == ([], [])
    finally:
        gateway.stop()


@pytest.mark.skipif(not has_unshare(), reason="needs unshare and the right to make PID namespaces")
@pytest.mark.parametrize("part", ["supervisor", "agent-outside"])
def test_a_pid_namespace_ends_with_its_first_process(tmp_path: Path, part: str) -> None:
    gateway = Gateway(tmp_path / "store", env={"DDPARITY_GATEWAY_ISOLATION": "pidns"}).start()
    try:
        job = gateway.submit("inside", args=[*STUBBORN, "--bare"])
        folder = gateway.wait_ranks(job)
        supervisor = pids_of(folder)["supervisor"][0]
        target = supervisor if part == "supervisor" else _child(supervisor)
        os.kill(target, signal.SIGKILL)
        assert gateway.wait(job)["status"] == ("LOST" if part == "supervisor" else "FAILED")
        assert (tagged(folder.name), stays()) == ([], [])
    finally:
        gateway.stop()


def _child(pid: int) -> int:
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])
