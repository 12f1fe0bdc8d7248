"""A real gateway in a process of its own, and what a test asks of it."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx

from ddparity._linux import alive, parent

HERE = Path(__file__).parent
SCRIPTS = HERE / "scripts" / "gateway"
STUB = HERE / "scripts" / "gateway_stub"
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "LOST")


def stub_python(folder: Path) -> str:
    """Write an interpreter whose torchrun is the stand-in; return its path."""
    path = folder / "stub-python"
    if not path.exists():
        path.write_text(f'#!/bin/sh\nPYTHONPATH="${{PYTHONPATH:+$PYTHONPATH:}}{STUB}" exec {sys.executable} "$@"\n')
        path.chmod(0o755)
    return str(path)


def tagged(uid: str) -> list[int]:
    """Return the living processes of a job, by the tag that all of them inherit."""
    entry = f"DDPARITY_JOB={uid}".encode()
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and alive(int(name)):
            try:
                if entry in Path("/proc", name, "environ").read_bytes().split(b"\0"):
                    found.append(int(name))
            except OSError:
                continue
    return found


class Gateway:
    """One gateway on ``store``; ``stub`` replaces torchrun by the stand-in."""

    def __init__(self, store: Path, *arguments: str, stub: bool = True, env: dict[str, str] | None = None) -> None:
        self.store = store
        store.mkdir(parents=True, exist_ok=True)
        self._arguments = ["--root", str(SCRIPTS), "--port", "0", "--store", str(store), *arguments]
        self._env = {"OMP_NUM_THREADS": "1"} | (env or {})
        if stub:
            self._env["DDPARITY_GATEWAY_PYTHON"] = stub_python(store)
        self.process: subprocess.Popen[bytes] | None = None
        self.http = httpx.Client(timeout=30, trust_env=False)

    def start(self, wait: bool = True, **env: str) -> "Gateway":
        (self.store / "gateway.json").unlink(missing_ok=True)
        with (self.store / "serve.log").open("ab") as log:
            code = "from ddparity.cli import main; main()"
            self.process = subprocess.Popen(
                [sys.executable, "-c", code, "serve", *self._arguments],
                env={**os.environ, **self._env, **env},
                stdout=log,
                stderr=log,
            )
        if wait:
            self.wait_ready()
        return self

    def wait_ready(self, seconds: float = 60.0) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            assert self.process is not None
            assert self.process.poll() is None, (self.store / "serve.log").read_text()
            try:
                self.url = json.loads((self.store / "gateway.json").read_text())["url"]
                if self.http.get(f"{self.url}/healthz").json()["dispatcher"] == "leads":
                    return
            except (OSError, ValueError, httpx.HTTPError):
                pass
            time.sleep(0.05)
        raise AssertionError("the gateway did not get ready")

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                self.kill()
        self.http.close()
        for folder in (self.store / "jobs").glob("*"):
            for pid in tagged(folder.name):
                os.kill(pid, signal.SIGKILL)

    def post(self, job_id: str, world_size: int = 2, batch_size: int = 4, **body: Any) -> httpx.Response:
        body = {"gate": "off", **body, "job_id": job_id, "world_size": world_size, "batch_size": batch_size}
        return self.http.post(f"{self.url}/api/v1/jobs/submit", json=body)

    def submit(self, job_id: str, world_size: int = 2, batch_size: int = 4, **body: Any) -> str:
        answer = self.post(job_id, world_size, batch_size, **{"entry": "light.py", "grace_s": 1.0, **body})
        assert answer.status_code == 200, answer.text
        return job_id

    def get(self, path: str, **params: Any) -> httpx.Response:
        return self.http.get(f"{self.url}/api/v1/jobs{path}", params=params)

    def status(self, job_id: str) -> dict[str, Any]:
        return self.get(f"/status/{job_id}").json()

    def wait(self, job_id: str, *states: str, seconds: float = 60.0) -> dict[str, Any]:
        deadline = time.monotonic() + seconds
        while True:
            found = self.status(job_id)
            if found["status"] in (states or ENDED):
                return found
            assert time.monotonic() < deadline, (found, self.logs(job_id))
            time.sleep(0.05)

    def folder(self, job_id: str) -> Path:
        for folder in (self.store / "jobs").glob("*"):
            spec = folder / "spec.json"
            if spec.exists() and json.loads(spec.read_text())["job_id"] == job_id:
                return folder
        raise AssertionError(f"no folder of {job_id}")

    def wait_ranks(self, job_id: str, world_size: int = 2, attempt: int = 0, seconds: float = 60.0) -> Path:
        """Wait until every rank of a job trains; return the job's folder."""
        self.wait(job_id, "RUNNING", *ENDED, seconds=seconds)
        folder = self.folder(job_id)
        deadline = time.monotonic() + seconds
        while not all((folder / "work" / f"ready-{attempt}-{rank}").exists() for rank in range(world_size)):
            assert time.monotonic() < deadline, self.logs(job_id)
            assert self.status(job_id)["status"] == "RUNNING", (self.status(job_id), self.logs(job_id))
            time.sleep(0.02)
        return folder

    def logs(self, job_id: str) -> str:
        try:
            folder = self.folder(job_id)
        except AssertionError:
            return (self.store / "serve.log").read_text()[-3000:]
        return "\n".join(f"== {path}\n{path.read_text()[-2000:]}" for path in sorted(folder.glob("logs/*/*.log")))


def pids_of(folder: Path, phase: str = "train-0") -> dict[str, list[int]]:
    """Return the processes of a running job by their part in it."""
    ranks = [json.loads(path.read_text())["pid"] for path in sorted((folder / "marks" / phase).glob("rank-*.json"))]
    supervisor = json.loads((folder / "supervisor.json").read_text())["pid"]
    return {"supervisor": [supervisor], "agent": [parent(ranks[0])], "rank": [ranks[-1]], "ranks": ranks}


def has_unshare() -> bool:
    """Return whether this machine permits PID namespaces."""
    program = shutil.which("unshare")
    if program is None:
        return False
    command = [program, "--pid", "--fork", "--kill-child=KILL", "--mount-proc", "true"]
    return subprocess.run(command, capture_output=True, timeout=20, check=False).returncode == 0
