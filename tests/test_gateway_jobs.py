"""What becomes of jobs: results, metrics, retries, time-outs, floods, and what their scripts are given."""

import json
from collections.abc import Iterator

import pytest

pytest.importorskip("fastapi")

from gateway_harness import Gateway, tagged

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    env = {"DDPARITY_GATEWAY_LOG_LIMIT_BYTES": "100000"}
    made = Gateway(tmp_path_factory.mktemp("jobs") / "store", env=env).start()
    yield made
    made.stop()


def test_metrics_are_what_the_script_logged(gateway: Gateway) -> None:
    job = gateway.submit("metrics")
    found = gateway.wait(job)
    assert (found["status"], found["error"], found["exit_code"]) == ("COMPLETED", None, 0)
    assert found["metrics"] == {"epoch_1_loss": 0.5, "final_accuracy": 0.75, "lost": "nan"}
    series = gateway.get(f"/{job}/metrics").json()["metrics"]
    assert [(point["value"], point["step"]) for point in series["epoch_1_loss"]] == [(0.5, 1)]


def test_the_gate_is_run_once_for_a_piece_of_code_and_leaves_nothing_in_the_job(gateway: Gateway) -> None:
    """Without torch nothing is recorded: the gate has run the single-device path, and cannot say more."""
    for name, gate in (("gated", "run"), ("gated-again", "passed before")):
        job = gateway.submit(name, gate="on")
        found = gateway.wait(job)
        assert found["status"] == "COMPLETED"
        assert found["phases"] == ({"gate": "INCONCLUSIVE"} if gate == "run" else {}) | {"train": "PASS"}
        told = [event["detail"] for event in gateway.get(f"/{job}/events").json()["events"]]
        assert [detail["gate"] for detail in told if "gate" in detail] == [gate]
        points = gateway.get(f"/{job}/metrics").json()["metrics"]["epoch_1_loss"]
        assert len(points) == 1
    assert "hello from rank 0" in gateway.get("/gated/logs/0", phase="gate").text


def test_a_gate_that_fails_ends_the_job_before_any_process_group(gateway: Gateway) -> None:
    job = gateway.submit("gate-stops", gate="on", entry="fails.py")
    found = gateway.wait(job)
    assert (found["status"], found["phases"]) == ("FAILED", {"gate": "FAIL"})
    assert found["error"] == "gate: the single-device path raised ValueError: planted"
    assert not (gateway.folder(job) / "logs" / "train-0").exists()


def test_a_failed_rank_is_named_with_its_error(gateway: Gateway) -> None:
    found = gateway.wait(gateway.submit("fails", args=["--fail-rank", "1"]))
    assert (found["status"], found["error"]) == ("FAILED", "rank 1 raised ValueError: planted on rank 1")


def test_an_exit_code_is_no_success_although_every_rank_finished(gateway: Gateway) -> None:
    found = gateway.wait(gateway.submit("three", args=["--exit-code", "3"]))
    assert (found["status"], "exit code 3" in found["error"]) == ("FAILED", True)


def test_an_interpreter_that_aborts_after_the_work_is_done_is_no_failure(gateway: Gateway) -> None:
    job = gateway.submit("aborts", args=["--abort"])
    found = gateway.wait(job)
    assert (found["status"], found["error"]) == ("COMPLETED", None)
    assert found["exit_code"] != 0
    end = gateway.get(f"/{job}/events").json()["events"][-1]
    assert "after every rank had finished its work" in end["detail"]["notes"][0]


def test_a_retry_has_a_fresh_rendezvous_and_the_checkpoints(gateway: Gateway) -> None:
    job = gateway.submit("retries", args=["--fail-rank", "0", "--fail-until", "2"], max_restarts=3)
    found = gateway.wait(job)
    assert (found["status"], found["error"]) == ("COMPLETED", None)
    logs = gateway.get(f"/{job}/logs").json()["logs"]
    assert sorted({log["attempt"] for log in logs}) == [0, 1, 2]
    values = [point["value"] for point in gateway.get(f"/{job}/metrics").json()["metrics"]["epoch_1_loss"]]
    assert values == [0.5, 1.5, 2.5]
    spec = json.loads((gateway.folder(job) / "spec.json").read_text())
    assert spec["env"]["DDPARITY_CHECKPOINT_DIR"] == str(gateway.folder(job) / "checkpoints")


def test_a_job_that_fails_every_time_says_so(gateway: Gateway) -> None:
    found = gateway.wait(gateway.submit("never", args=["--fail-rank", "0"], max_restarts=1))
    assert found["status"] == "FAILED"
    assert found["error"] == "rank 0 raised ValueError: planted on rank 0 (attempt 2 of 2)"


def test_a_job_that_takes_too_long_is_ended(gateway: Gateway) -> None:
    job = gateway.submit("slow", args=["--seconds", "60", "--stubborn"], timeout_s=2.0, max_restarts=3)
    found = gateway.wait(job)
    assert (found["status"], found["error"]) == ("FAILED", "the job ran longer than timeout_s 2")
    assert tagged(gateway.folder(job).name) == []


def test_a_flood_is_kept_within_bounds_and_offsets_stay_true(gateway: Gateway) -> None:
    job = gateway.submit("flood", world_size=1, args=["--flood", "1000000", "--seconds", "3"])
    gateway.wait(job)
    log = next(each for each in gateway.get(f"/{job}/logs").json()["logs"] if each["rank"] == "0")
    assert log["size"] > 1_000_000
    assert log["first"] >= log["size"] - 100_000
    path = gateway.folder(job) / "logs" / "train-0" / "rank-00000.log"
    assert path.stat().st_blocks * 512 < 400_000
    start = 990_000
    answer = gateway.http.get(
        f"{gateway.url}/api/v1/jobs/{job}/logs/0", headers={"Range": f"bytes={start}-{start + 99}"}
    )
    assert (answer.status_code, len(answer.content)) == (206, 100)
    whole = gateway.get(f"/{job}/logs/0")
    assert whole.status_code == 206
    lines = [line for line in whole.text.splitlines()[1:] if "x" in line]
    numbers = [int(line.split()[0]) for line in lines]
    assert numbers == list(range(numbers[0], 1_000_000, 1000))


def test_ranks_write_logs_of_their_own(gateway: Gateway) -> None:
    job = gateway.submit("logs", args=["--echo", "{batch_size}", "{global_batch}", "{world_size}"])
    gateway.wait(job)
    for rank in range(2):
        assert gateway.get(f"/{job}/logs/{rank}").text == f"hello from rank {rank} attempt 0 4 8 2\n"
    assert gateway.get(f"/{job}/logs/7").status_code == 404
    tail = gateway.http.get(f"{gateway.url}/api/v1/jobs/{job}/logs/1", headers={"Range": "bytes=-6"})
    assert (tail.status_code, tail.text, tail.headers["content-range"]) == (206, " 4 8 2\n"[-6:], "bytes 28-33/34")
    beyond = gateway.http.get(f"{gateway.url}/api/v1/jobs/{job}/logs/1", headers={"Range": "bytes=999-"})
    assert (beyond.status_code, beyond.headers["content-range"]) == (416, "bytes */34")


def test_a_log_is_followed_live_and_from_where_one_left(gateway: Gateway) -> None:
    job = gateway.submit("live", args=["--seconds", "2"])
    gateway.wait_ranks(job)
    url = f"{gateway.url}/api/v1/jobs/{job}/logs/0/stream"
    with gateway.http.stream("GET", url) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = list(answer.iter_lines())
    assert "data: hello from rank 0 attempt 0" in lines
    assert lines[-2] == "data: end"
    with gateway.http.stream("GET", url, headers={"Last-Event-ID": "6"}) as answer:
        assert "data: from rank 0 attempt 0" in list(answer.iter_lines())


def test_a_script_that_refuses_its_arguments_says_so(gateway: Gateway) -> None:
    found = gateway.wait(gateway.submit("missing-arg", args=["--no-such-option"]))
    assert found["status"] == "FAILED"
    assert found["error"].endswith("raised SystemExit: 2")


def test_cancelled_while_it_waits(gateway: Gateway) -> None:
    first = gateway.submit("fills", world_size=8, args=["--seconds", "30"])
    gateway.wait_ranks(first, 8)
    waiting = gateway.submit("waits")
    assert gateway.http.post(f"{gateway.url}/api/v1/jobs/{waiting}/cancel").json()["status"] == "CANCELLED"
    gateway.http.post(f"{gateway.url}/api/v1/jobs/{first}/cancel")
    assert gateway.wait(first)["status"] == "CANCELLED"
    again = gateway.http.post(f"{gateway.url}/api/v1/jobs/{waiting}/cancel").json()
    assert (again["status"], again["error"]) == ("CANCELLED", "cancelled by local")


def test_a_cancel_that_comes_after_the_end_changes_nothing(gateway: Gateway) -> None:
    job = gateway.submit("done")
    gateway.wait(job)
    assert gateway.http.post(f"{gateway.url}/api/v1/jobs/{job}/cancel").json()["status"] == "COMPLETED"
