"""What a command that takes long shows: a line on a terminal after two seconds, and nothing anywhere else."""

import os
import pty
import subprocess
import sys

import pytest

SLOW = """
import sys, time
from ddparity.cli import _busy
from ddparity.cli._busy import Busy
assert _busy.SILENT_SECONDS == 2.0
_busy.SILENT_SECONDS = 0.3
with Busy("holding two against single") as busy:
    time.sleep(float(sys.argv[1]))
    busy.say("rung 1: PASS")
    print("the answer")
"""


def on_a_terminal(seconds: str, **env: str) -> tuple[str, str]:
    """Return what a slow command wrote to its terminal, standard error, and to its standard output, a pipe."""
    own, other = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", SLOW, seconds],
        stdout=subprocess.PIPE,
        stderr=other,
        text=True,
        env={**os.environ, "TERM": "xterm", **env},
    ) as process:
        os.close(other)
        shown = b""
        while True:
            try:
                shown += os.read(own, 1 << 16)
            except OSError:  # the other side is closed
                break
        answer, _ = process.communicate(timeout=20)
    os.close(own)
    return shown.decode(), answer


@pytest.mark.parametrize("env", [{}, {"NO_COLOR": "1"}])
def test_what_takes_long_is_shown_and_cleared(env):
    shown, answer = on_a_terminal("1.0", **env)
    assert "holding two against single" in shown
    assert shown.index("holding two against single") < shown.index("ddparity: rung 1: PASS")
    assert shown.endswith("\x1b[2K") or shown.rstrip().endswith("\x1b[2K"), "a line was left behind"
    assert answer == "the answer\n"
    assert ("\x1b[3" in shown) == (not env)


@pytest.mark.parametrize(("seconds", "env"), [("0.1", {}), ("1.0", {"TERM": "dumb"})])
def test_nothing_is_shown_of_what_is_quick_or_where_nothing_can_be_shown(seconds, env):
    shown, answer = on_a_terminal(seconds, **env)
    assert shown == "ddparity: rung 1: PASS\r\n"
    assert answer == "the answer\n"


def test_nothing_is_shown_where_there_is_no_terminal():
    done = subprocess.run([sys.executable, "-c", SLOW, "1.0"], capture_output=True, text=True, timeout=20)
    assert (done.stderr, done.stdout) == ("ddparity: rung 1: PASS\n", "the answer\n")
