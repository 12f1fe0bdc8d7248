"""The commands and the client that call a gateway, against a real one."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("fastapi")

from ddparity._errors import CommandFailed
from ddparity.gateway._server import server_config
from ddparity.gateway._settings import Settings
from ddparity.gateway.client import Client, GatewayError, GatewayUnreachable
from gateway_harness import Gateway

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    made = Gateway(tmp_path_factory.mktemp("cli") / "store").start()
    yield made
    made.stop()


def run(gateway: Gateway, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from ddparity.cli import main; main()", *arguments]
    whole = {**os.environ, "DDPARITY_GATEWAY_URL": gateway.url, **env}
    return subprocess.run(command, env=whole, capture_output=True, text=True, timeout=90, check=False)


def test_submit_and_wait_exits_with_0_or_4(gateway: Gateway) -> None:
    options = ["--gate", "off", "--wait"]
    done = run(
        gateway, "submit", "--name", "good", "--nproc", "2", *options, "--", "light.py", "--echo", "{world_size}"
    )
    assert done.returncode == 0, done.stderr
    assert "status    COMPLETED" in done.stdout
    assert "metric    final_accuracy = 0.75" in done.stdout
    assert run(gateway, "logs", "good", "--rank", "1").stdout == "hello from rank 1 attempt 0 2\n"
    failed = run(gateway, "submit", "--name", "bad", *options, "--json", "--", "light.py", "--fail-rank", "0")
    assert failed.returncode == 4
    found = json.loads(failed.stdout)
    assert (found["job_id"], found["status"]) == ("bad", "FAILED")
    assert "rank 0 raised ValueError: planted on rank 0" in found["error"]


def test_status_list_follow_and_cancel(gateway: Gateway) -> None:
    done = run(gateway, "submit", "--name", "long", "--gate", "off", "--", "python", "light.py", "--seconds", "30")
    assert (done.returncode, done.stdout) == (0, "long\n")
    assert "ddparity logs -f long" in done.stderr
    gateway.wait_ranks("long", 1)
    assert '"status": "RUNNING"' in run(gateway, "status", "long", "--json").stdout
    assert "long" in run(gateway, "jobs", "--status", "RUNNING").stdout
    command = [sys.executable, "-c", "from ddparity.cli import main; main()", "logs", "-f", "long"]
    env = {**os.environ, "DDPARITY_GATEWAY_URL": gateway.url}
    following = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)
    ended = run(gateway, "cancel", "long", "--wait", "--json")
    assert "long: CANCELLED" in ended.stderr
    assert json.loads(ended.stdout)["status"] == "CANCELLED"
    assert "hello from rank 0" in following.communicate(timeout=30)[0]
    assert following.returncode == 0


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["status", "nobody"], 2, "There is no job 'nobody'"),
        (["submit", "--gate", "off", "--", "/etc/passwd"], 2, "neither a workload"),
        (["submit", "--", "torchrun", "train.py"], 2, "is the gateway's part"),
        (["submit", "--env", "X"], 2, "write NAME=VALUE"),
        (["status", "x", "--url", "http://127.0.0.1:9"], 4, "There is no gateway at http://127.0.0.1:9"),
    ],
)
def test_what_cannot_be_done_is_said(gateway: Gateway, arguments: list[str], code: int, message: str) -> None:
    done = run(gateway, *arguments)
    assert (done.returncode, done.stdout) == (code, "")
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_job_is_waited_for_as_a_future_is(gateway: Gateway) -> None:
    with Client(gateway.url) as client:
        job = client.submit("future", 2, 4, entry="light.py", gate="off")
        assert job.result(timeout_s=60)["final_accuracy"] == 0.75
        assert job.done()
        assert b"".join(client.logs("future", "0")).startswith(b"hello")
        assert [event["kind"] for event in client.events("future")][-1] == "COMPLETED"
        with pytest.raises(GatewayError, match="exists already"):
            client.submit("future", 2, 4)
        failing = client.submit("failing", 1, 4, entry="light.py", args=["--fail-rank", "0"], gate="off")
        with pytest.raises(CommandFailed, match="planted on rank 0"):
            failing.result(timeout_s=60)
        slow = client.submit("slow", 1, 4, entry="light.py", args=["--seconds", "30"], gate="off")
        with pytest.raises(TimeoutError):
            slow.wait(timeout_s=0.5)
        slow.cancel()
        assert slow.wait(timeout_s=30)["status"] == "CANCELLED"
        assert {job["job_id"] for job in client.jobs(status=["CANCELLED"])} >= {"slow"}


def test_waiting_outlives_a_restart_of_the_gateway(tmp_path: Path) -> None:
    gateway = Gateway(tmp_path / "store").start()
    try:
        gateway.submit("patient", args=["--seconds", "5"])
        gateway.wait_ranks("patient")
        with Client(store=gateway.store) as client:
            assert client.url == gateway.url
        port = gateway.url.rpartition(":")[2]
        with Client(gateway.url) as client:
            gateway.kill()
            with pytest.raises(GatewayUnreachable):
                client.status("patient")
            time.sleep(0.5)
            gateway.start(DDPARITY_GATEWAY_PORT=port)
            gateway._arguments[gateway._arguments.index("--port") + 1] = port
            gateway.kill()
            gateway.start()
            assert client.job("patient").result(timeout_s=60)["final_accuracy"] == 0.75
    finally:
        gateway.stop()


def test_without_its_libraries_the_gateway_says_which_extra_to_install(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "class Hide:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] in ('fastapi', 'httpx', 'uvicorn'):\n"
        "            raise ImportError(name, name=name)\n"
        "sys.meta_path.insert(0, Hide())\n"
    )
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    for command in (["serve"], ["jobs"]):
        done = subprocess.run(
            [sys.executable, "-c", "from ddparity.cli import main; main()", *command, "--store", str(tmp_path / "s")],
            env=env, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 2
        assert "pip install 'ddparity[gateway]'" in done.stderr


@pytest.mark.parametrize(("value", "colours"), [("1", False), ("", None)])
def test_the_log_of_a_gateway_respects_no_color(
    value: str, colours: bool | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", value)
    assert server_config(Settings.load(tmp_path)).use_colors is colours
