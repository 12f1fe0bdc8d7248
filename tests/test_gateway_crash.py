"""The gateway dies at each named point between request and launch, and is started again: exactly one run, or none."""

import contextlib
import os
import signal
from pathlib import Path

import pytest

pytest.importorskip("fastapi")

import httpx

from ddparity.gateway._crash import POINTS
from gateway_harness import Gateway, pids_of, tagged

pytestmark = pytest.mark.timeout(180)


@pytest.mark.parametrize("point", POINTS)
def test_the_gateway_dies_at(tmp_path: Path, point: str) -> None:
    gateway = Gateway(tmp_path / "store")
    try:
        gateway.start(DDPARITY_GATEWAY_CRASH_AT=point)
        answered = None
        with contextlib.suppress(httpx.HTTPError):
            answered = gateway.post("once", entry="light.py", args=["--seconds", "1"]).status_code
        assert gateway.process is not None
        assert gateway.process.wait(timeout=60) == 137
        gateway.start()
        if point == "before-insert":
            assert (answered, gateway.get("/status/once").status_code) == (None, 404)
            assert list((gateway.store / "jobs").iterdir()) == []
            return
        assert (gateway.status("once")["status"] in ("PENDING", "RUNNING", "COMPLETED"), answered) in (
            (True, None),
            (True, 200),
        )
        assert gateway.wait("once")["status"] == "COMPLETED"
        folder = gateway.folder("once")
        for rank in range(2):
            assert (folder / "logs" / "train-0" / f"rank-{rank:05d}.log").read_text().count("hello") == 1
        assert len(list((gateway.store / "jobs").iterdir())) == 1
        kinds = [event["kind"] for event in gateway.get("/once/events").json()["events"]]
        states = [kind for kind in kinds if kind.isupper() and kind != "RUNNING"]  # it may have run while nobody looked
        assert states == ["PENDING", "STARTING", "COMPLETED"]
        assert gateway.http.get(f"{gateway.url}/metrics").text.count('ddparity_slots{use="free"} 8.0') == 1
    finally:
        gateway.stop()


def test_two_gateways_of_a_store_run_a_job_once(tmp_path: Path) -> None:
    """The second one serves and waits; it takes over when the first one is killed."""
    first = Gateway(tmp_path / "store").start()
    second = Gateway(tmp_path / "store")
    try:
        url = first.url
        second.start(wait=False)
        job = first.submit("shared", args=["--seconds", "4"])
        folder = first.wait_ranks(job)
        first.kill()
        second.wait_ready()
        assert second.url != url
        assert second.wait(job)["status"] == "COMPLETED"
        assert (folder / "logs" / "train-0" / "rank-00000.log").read_text().count("hello") == 1
    finally:
        first.stop()
        second.stop()


def test_a_supervisor_refuses_a_job_that_was_started_once(tmp_path: Path) -> None:
    """Neither while it runs nor after its end, and whoever starts it."""
    from ddparity.gateway.supervisor._folder import JobFolder
    from ddparity.gateway.supervisor._supervise import REFUSED, TAKEN, supervise

    gateway = Gateway(tmp_path / "store").start()
    try:
        job = gateway.submit("one", args=["--seconds", "30"])
        folder = gateway.wait_ranks(job)
        assert supervise(JobFolder(folder)) == TAKEN
        os.kill(pids_of(folder)["supervisor"][0], signal.SIGKILL)
        assert gateway.wait(job)["status"] == "LOST"
        assert supervise(JobFolder(folder)) == REFUSED
        assert tagged(folder.name) == []
    finally:
        gateway.stop()


@pytest.mark.parametrize("point", ["after-claim", "after-held", "after-ref"])
def test_a_job_that_is_cancelled_while_the_gateway_is_away_does_not_run(tmp_path: Path, point: str) -> None:
    """The cancel comes in before the new gateway has taken the job up again."""
    from ddparity.gateway._database import Database, sqlite_url
    from ddparity.gateway._jobs import Jobs

    gateway = Gateway(tmp_path / "store")
    try:
        gateway.start(DDPARITY_GATEWAY_CRASH_AT=point)
        with contextlib.suppress(httpx.HTTPError):
            gateway.post("unwanted", entry="light.py")
        assert gateway.process is not None
        assert gateway.process.wait(timeout=60) == 137
        database = Database(sqlite_url(gateway.store / "gateway.sqlite"))
        Jobs(database).cancel("local", "unwanted", "ann")
        database.close()
        gateway.start()
        found = gateway.wait("unwanted")
        assert (found["status"], found["error"]) == ("CANCELLED", "cancelled by ann")
        assert list((gateway.store / "jobs").glob("*/logs/train-0/rank-*.log")) == []
        assert 'ddparity_slots{use="free"} 8.0' in gateway.http.get(f"{gateway.url}/metrics").text
    finally:
        gateway.stop()
