"""A signal to any command ends it with all that it started, and with exit code 130."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

DDPARITY = str(Path(sys.executable).with_name("ddparity"))


def processes(word: str) -> list[int]:
    """Return the processes whose last argument is a word."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if len(words) > 1 and words[-2] == word.encode():
            found.append(int(path.parent.name))
    return found


def wait_until(happened, seconds=60.0):
    end = time.monotonic() + seconds
    while not (found := happened()):
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.05)
    return found


COMMANDS = {
    "record": ["record", "--store", "S"],
    "control": ["record", "--control", "--store", "S"],
    "memory": ["memory", "--batch", "2"],
    "data": ["data", "--store", "S"],
    "recover": ["recover", "--at-step", "2", "--checkpoints", "saved", "--store", "S"],
    "preflight": ["preflight", "--global-batch", "4", "--store", "S"],
    "ladder": ["ladder", "--global-batch", "4", "--store", "S"],
}


def start(tmp_path, name):
    script = tmp_path / "train.py"
    script.write_text("import time\ntime.sleep(120)\n")
    mark = f"mark={tmp_path.name}"
    words = [str(tmp_path / "store") if word == "S" else word for word in COMMANDS[name]]
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    process = subprocess.Popen(
        [DDPARITY, *words, "--", sys.executable, str(script), mark],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(scratch), "OMP_NUM_THREADS": "1"},
    )
    wait_until(lambda: set(processes(mark)) - {process.pid})
    return process, mark, scratch


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("name", COMMANDS)
def test_a_signal_ends_a_command_and_all_that_it_started(tmp_path, name, number):
    process, mark, scratch = start(tmp_path, name)
    process.send_signal(number)
    process.communicate(timeout=40)
    assert process.returncode == 130
    wait_until(lambda: not processes(mark), 5.0)
    assert not list(scratch.glob("ddparity-*"))
    assert len(list((tmp_path / "store" / "trials").glob("*"))) <= 1, "a second run was begun"


def test_what_memory_tries_ends_with_it_even_when_it_is_killed(tmp_path):
    process, mark, _ = start(tmp_path, "memory")
    process.kill()
    process.communicate(timeout=40)
    wait_until(lambda: not processes(mark), 5.0)
