"""The gateway with real torchrun and real trainings: the digits, the gate, the verdict, and kills."""

import os
import shutil
import signal
import time
from collections.abc import Iterator

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("torch")
pytest.importorskip("sklearn")

from gateway_harness import Gateway, pids_of, tagged

pytestmark = pytest.mark.timeout(300)
WAIT = 200.0


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    made = Gateway(tmp_path_factory.mktemp("real") / "store", stub=False).start()
    yield made
    made.stop()


def test_three_parameters_train_the_digits(gateway: Gateway) -> None:
    params = {"job_id": "digits", "world_size": 2, "batch_size": 32}
    answer = gateway.http.post(f"{gateway.url}/api/v1/jobs/submit", params=params)
    assert (answer.status_code, answer.json()["status"]) == (200, "PENDING")
    found = gateway.wait("digits", seconds=WAIT)
    assert (found["status"], found["error"]) == ("COMPLETED", None)
    assert found["phases"] == {"gate": "PASS", "train": "PASS"}
    assert list(found["metrics"]) == [*(f"epoch_{number}_loss" for number in range(1, 6)), "final_accuracy"]
    assert found["metrics"]["epoch_5_loss"] < 0.3 < found["metrics"]["epoch_1_loss"]
    assert found["metrics"]["final_accuracy"] > 0.8
    assert "step 0 loss" in gateway.get("/digits/logs/0").text
    assert tagged(gateway.folder("digits").name) == []


@pytest.mark.slow
def test_a_recorded_job_has_its_verdict(gateway: Gateway) -> None:
    settings = {"entry": "digits", "args": ["--epochs", "1"], "record": True, "gate": "on"}
    assert gateway.post("recorded", 2, 32, **settings).status_code == 200
    found = gateway.wait("recorded", seconds=WAIT)
    assert (found["status"], found["error"]) == ("COMPLETED", None)
    assert found["phases"] == {"gate": "PASS", "train": "PASS", "verdict": "PASS"}
    verdict = gateway.get("/recorded/verdict").json()
    assert verdict["layers"]["numerics"]["status"] == "PASS"
    assert "<!doctype html>" in gateway.get("/recorded/verdict", html=True).text
    settings["args"] = ["--epochs", "1", "--fault", "unsynced"]
    assert gateway.post("faulty", 2, 32, **settings).status_code == 200
    found = gateway.wait("faulty", seconds=WAIT)
    assert (found["status"], found["phases"]["verdict"]) == ("COMPLETED", "DEVIATES")
    assert gateway.get("/faulty/verdict").json()["findings"][0]["name"] == "fc2.weight"
    if (chromium := shutil.which("chromium")) is not None:
        _walk(gateway, chromium)


def _walk(gateway: Gateway, chromium: str) -> None:
    """From the list to the job, to its verdict, to the parameter that deviates, as a reader goes."""
    from playwright.sync_api import expect, sync_playwright

    before = dict(os.environ)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page()
        page.goto(f"{gateway.url}/")
        page.get_by_role("link", name="faulty").click()
        expect(page.locator("#live")).to_contain_text("DEVIATES")
        page.get_by_role("link", name="the report").click()
        expect(page.locator(".locus").first).to_contain_text("step 0, backward: synced gradient of fc2.weight")
        expect(page.get_by_role("row", name="fc2.weight").locator("td.first").first).to_contain_text("first")
        browser.close()
    os.environ.clear()
    os.environ.update(before)


def test_a_single_device_path_that_fails_ends_the_job_at_the_gate(gateway: Gateway) -> None:
    assert gateway.post("broken", entry="broken.py", gate="on").status_code == 200
    found = gateway.wait("broken", seconds=WAIT)
    assert (found["status"], found["phases"]) == ("FAILED", {"gate": "FAIL"})
    assert "the single-device path raised RuntimeError: mat1 and mat2" in found["error"]
    assert not (gateway.folder("broken") / "logs" / "train-0").exists()
    events = gateway.get("/broken/events").json()["events"]
    assert [event["detail"]["gate"] for event in events if event["kind"] == "prepared"] == ["run"]


@pytest.mark.parametrize(
    ("part", "args", "state"),
    [("rank", [], "FAILED"), ("agent", ["stubborn"], "FAILED"), ("everything", ["stubborn"], "LOST")],
)
def test_kill_with_real_processes(gateway: Gateway, part: str, args: list[str], state: str) -> None:
    job = gateway.submit(f"kill-{part}", entry="ddp.py", args=["100000", *args])
    folder = gateway.wait_ranks(job, seconds=WAIT)
    pids = pids_of(folder)
    targets = [*pids["supervisor"], *pids["agent"], *pids["ranks"]] if part == "everything" else pids[part]
    for pid in targets:
        os.kill(pid, signal.SIGKILL)
    start = time.monotonic()
    found = gateway.wait(job, seconds=WAIT)
    print(f"\nreal {part} {args}: {found['status']} after {time.monotonic() - start:.2f} s: {found['error']}")
    assert (found["status"], tagged(folder.name)) == (state, [])
    if part == "rank":
        assert found["error"].startswith("rank 1 ")


@pytest.mark.slow
def test_a_killed_training_starts_again_from_its_checkpoint(gateway: Gateway) -> None:
    job = gateway.submit("resumes", 2, 32, entry="digits", args=["--epochs", "20"], max_restarts=1)
    deadline = time.monotonic() + WAIT
    while "epoch_3_loss" not in gateway.status(job)["metrics"]:
        assert time.monotonic() < deadline, gateway.logs(job)
        time.sleep(0.1)
    os.kill(pids_of(gateway.folder(job))["rank"][0], signal.SIGKILL)
    found = gateway.wait(job, seconds=WAIT)
    assert (found["status"], found["error"]) == ("COMPLETED", None)
    again = gateway.get(f"/{job}/logs/0").text.splitlines()[0]
    assert again.startswith("step ")
    assert int(again.split()[1]) >= 3 * 22
