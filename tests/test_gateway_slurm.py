"""The engine 'slurm' against a real Slurm of two nodes: right states, no orphan."""

import contextlib
import os
import shutil
import signal
import socket
import time
from collections.abc import Iterator

import pytest

pytest.importorskip("fastapi")

import httpx

from gateway_harness import Gateway, pids_of, tagged
from slurm_cluster import Cluster

HAS_SLURM = shutil.which("slurmctld", path=os.environ["PATH"] + ":/usr/sbin") is not None
pytestmark = [
    pytest.mark.timeout(280),
    pytest.mark.skipif(not HAS_SLURM, reason="needs Slurm: apt-get install slurmctld slurmd slurm-client"),
]
STUBBORN = ["--seconds", "100", "--stubborn"]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    made = Cluster(tmp_path_factory.mktemp("slurm") / "cluster", port)
    made.start()
    yield made
    made.stop()


@pytest.fixture(scope="module")
def gateway(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    made = Gateway(tmp_path_factory.mktemp("on-slurm") / "store", "--slurm", env=environment(cluster)).start()
    yield made
    made.stop()


def environment(cluster: Cluster) -> dict[str, str]:
    return {"SLURM_CONF": cluster.env["SLURM_CONF"], "PATH": cluster.env["PATH"]}


def submit(gateway: Gateway, name: str, args: list[str], **settings: object) -> str:
    return gateway.submit(name, args=args, **{"engine": "slurm", "nodes": 2, **settings})


def test_a_job_of_two_nodes(gateway: Gateway, cluster: Cluster) -> None:
    job = submit(gateway, "two-nodes", ["--seconds", "1"])
    found = gateway.wait(job)
    assert (found["status"], found["error"]) == ("COMPLETED", None)
    assert found["metrics"]["final_accuracy"] == 0.75
    for rank in range(2):
        assert f"hello from rank {rank}" in gateway.get(f"/{job}/logs/{rank}").text
    events = {event["kind"]: event["detail"] for event in gateway.get(f"/{job}/events").json()["events"]}
    number = events["prepared"]["ref"]
    assert f"JobId={number}" in cluster.run("scontrol", "show", "job", number)
    assert "Requeue=0" in cluster.run("scontrol", "show", "job", number)


@pytest.mark.parametrize("args", [["--seconds", "100"], STUBBORN], ids=["cooperative", "stubborn"])
def test_cancel(gateway: Gateway, args: list[str], request: pytest.FixtureRequest) -> None:
    job = submit(gateway, f"cancel-{request.node.callspec.id}", args)
    folder = gateway.wait_ranks(job)
    start = time.monotonic()
    gateway.http.post(f"{gateway.url}/api/v1/jobs/{job}/cancel")
    found = gateway.wait(job)
    print(f"\nslurm cancel: {time.monotonic() - start:.1f} s")
    assert (found["status"], found["error"], tagged(folder.name)) == ("CANCELLED", "cancelled by local", [])


def test_cancel_while_slurm_has_no_room(gateway: Gateway, cluster: Cluster) -> None:
    cluster.run("scontrol", "update", "PartitionName=main", "State=DOWN")
    job = submit(gateway, "waits", ["--seconds", "100"])
    deadline = time.monotonic() + 30
    while "prepared" not in str(gateway.get(f"/{job}/events").json()):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    time.sleep(1)
    assert gateway.status(job)["status"] == "PENDING"
    gateway.http.post(f"{gateway.url}/api/v1/jobs/{job}/cancel")
    assert gateway.wait(job)["status"] == "CANCELLED"
    cluster.run("scontrol", "update", "PartitionName=main", "State=UP")


@pytest.mark.parametrize("part", ["agent", "rank"])
def test_kill(gateway: Gateway, part: str) -> None:
    job = submit(gateway, f"kill-{part}", STUBBORN)
    folder = gateway.wait_ranks(job)
    pids = pids_of(folder)
    os.kill(pids[part][0], signal.SIGKILL)
    start = time.monotonic()
    found = gateway.wait(job)
    print(f"\nslurm kill {part}: {time.monotonic() - start:.1f} s: {found['error']}")
    assert (found["status"], tagged(folder.name)) == ("FAILED", [])
    assert ("the launcher was killed by SIGKILL" in found["error"]) == (part == "agent")


@pytest.mark.slow
def test_slurmctld_is_killed_and_started_again(gateway: Gateway, cluster: Cluster) -> None:
    runs = submit(gateway, "runs-on", ["--seconds", "15"])
    gateway.wait_ranks(runs)
    time.sleep(7)  # Slurm writes its state down every 5 s
    cluster.kill_controller()
    time.sleep(2)
    assert gateway.status(runs)["status"] == "RUNNING"
    cluster.start_controller()
    found = gateway.wait(runs, seconds=100)
    assert (found["status"], found["error"]) == ("COMPLETED", None)


@pytest.mark.slow
@pytest.mark.parametrize("point", ["after-claim", "after-held", "after-ref", "after-release"])
def test_the_gateway_dies_between_hold_and_release(cluster: Cluster, tmp_path, point: str) -> None:
    gateway = Gateway(tmp_path / "store", "--slurm", env=environment(cluster))
    try:
        gateway.start(DDPARITY_GATEWAY_CRASH_AT=point)
        with contextlib.suppress(httpx.HTTPError):  # it may die before it has answered
            submit(gateway, "once", ["--seconds", "1"])
        assert gateway.process is not None
        assert gateway.process.wait(timeout=60) == 137
        gateway.start()
        assert gateway.wait("once", seconds=100)["status"] == "COMPLETED"
        folder = gateway.folder("once")
        assert (folder / "logs" / "train-0" / "rank-00000.log").read_text().count("hello") == 1
        assert cluster.run("squeue", "-h", "-t", "all", "-n", f"ddparity-{folder.name}", "-o", "%i").count("\n") == 1
    finally:
        gateway.stop()


@pytest.mark.slow
def test_the_digits_are_trained_by_ddp_over_two_nodes(cluster: Cluster, tmp_path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    gateway = Gateway(tmp_path / "store", "--slurm", stub=False, env=environment(cluster)).start()
    try:
        settings = {"engine": "slurm", "nodes": 2, "entry": "digits", "args": ["--epochs", "3"], "gate": "on"}
        assert gateway.post("digits", 2, 32, **settings).status_code == 200
        found = gateway.wait("digits", seconds=250)
        assert (found["status"], found["error"]) == ("COMPLETED", None)
        assert found["phases"] == {"gate": "PASS", "train": "PASS"}
        assert found["metrics"]["final_accuracy"] > 0.6
    finally:
        gateway.stop()
