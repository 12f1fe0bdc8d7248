"""A disk that is full, and one that is nearly so."""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("fastapi")

from gateway_harness import Gateway, tagged

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Return a folder on a disk of 24 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("needs the right to mount a small disk")
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("needs the right to mount a small disk")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_swallows_no_result(small_disk: Path) -> None:
    """The job runs on, its end is told, nothing is left, and the gateway says what it cannot do."""
    gateway = Gateway(small_disk / "store", env={"DDPARITY_GATEWAY_MIN_FREE_BYTES": "1000000"}).start()
    try:
        job = gateway.submit("fills", world_size=1, args=["--seconds", "4"])
        folder = gateway.wait_ranks(job, 1)
        filler = folder / "work" / "filler"
        with filler.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(b"x" * 65536)
            except OSError:
                pass
        answer = gateway.post("refused", entry="light.py")
        assert answer.status_code in (200, 503), answer.text
        time.sleep(5)
        deadline = time.monotonic() + 20
        while not (folder / "result.json").exists():
            assert time.monotonic() < deadline, list(folder.iterdir())
            time.sleep(0.1)
        assert tagged(folder.name) == []
        filler.unlink()
        assert gateway.wait(job)["status"] == "COMPLETED"
        assert gateway.http.get(f"{gateway.url}/healthz").status_code == 200
    finally:
        gateway.stop()


def test_no_job_starts_while_the_disk_has_too_little(tmp_path: Path) -> None:
    gateway = Gateway(tmp_path / "store", env={"DDPARITY_GATEWAY_MIN_FREE_BYTES": str(1 << 60)}).start()
    try:
        job = gateway.submit("waits")
        time.sleep(2)
        assert gateway.status(job)["status"] == "PENDING"
    finally:
        gateway.stop()
