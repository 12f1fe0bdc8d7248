"""The review before a launch: the digits pass it, and each of planted faults shows in its row and in no earlier one."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ddparity._errors import UsageError
from ddparity.preflight import ROWS, PreflightSpec
from ddparity.trials import Store

DDPARITY = str(Path(sys.executable).with_name("ddparity"))
SCRIPT = str(Path(__file__).parent / "scripts" / "drilled.py")
DIGITS = ["--steps", "60", "--batch-size", "{global_batch}", "--accum", "{accum}"]
SAVES = ["--checkpoint", "{checkpoints}/digits.pt"]
PLANTS = {
    "unseeded": "repeat",
    "ascends": "learns",
    "no_start": "launch",
    "overlap": "data",
    "grows": "memory",
    "other_operation": "calls",
    "summed": "ladder",
    "swallows": "exit",
    "deaf": "kill",
    "waits": "stall",
    "forgets": "resume",
    "lenient": "truncated",
    "silent": "full-disk",
}


@pytest.fixture
def preflight(tmp_path, monkeypatch):
    """Return ``preflight(*options, script)``: exit code and JSON of the command, in a store of its own."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")

    def run(*options, script=("-m", "ddparity.workloads.digits")):
        command = [
            DDPARITY,
            "preflight",
            "--store",
            str(tmp_path / "store"),
            "--json",
            "--global-batch",
            "64",
            *options,
        ]
        done = subprocess.run(
            [*command, "--", sys.executable, *script, *DIGITS, *SAVES], capture_output=True, text=True, timeout=1100
        )
        return done.returncode, json.loads(done.stdout)

    yield run
    assert not (tmp_path / "store" / "preflight").exists()


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_digits_pass_the_whole_review(preflight):
    code, review = preflight()
    assert {row["name"]: row["status"] for row in review["rows"] if row["status"] != "PASS"} in (
        {},
        {"full-disk": "NOT_TESTED"},  # not as root
    ), review["rows"]
    assert (code, review["status"]) == (0, "PASS")
    assert [row["name"] for row in review["rows"]] == [kind.name for kind in ROWS]
    drills = {row["name"]: row["numbers"] for row in review["rows"] if row["section"] == "injected faults"}
    assert drills["kill"]["cause"] == "rank.killed (rank:1)"
    assert drills["stop"]["cause"] == "rank.stopped (rank:1)"
    assert 9.0 < drills["stop"]["others_ended_s"] < 20.0
    assert all(drills[name]["exit_code"] != 0 for name in ("exit", "kill", "stop", "stall", "truncated"))


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("plant", PLANTS)
def test_a_planted_fault_shows_in_its_row(preflight, plant):
    if plant == "silent" and shutil.which("mount") is None:
        pytest.skip("no file system can be mounted here")
    name = PLANTS[plant]
    options = ["--only", name, "--drill-timeout", "5", *(["--timeout", "40"] if plant == "waits" else [])]
    code, review = preflight(*options, script=(SCRIPT, "--plant", plant))
    rows = {row["name"]: row for row in review["rows"]}
    assert rows[name]["status"] == "DEVIATES", review["rows"]
    assert code == 1
    grounds = [row["status"] for other, row in rows.items() if other != name]
    assert set(grounds) <= {"PASS"} or plant == "lenient", review["rows"]


def test_rows_stand_on_rows_before_them():
    names = [kind.name for kind in ROWS]
    assert len(set(names)) == len(names)
    assert all(kind.ground == "" or names.index(kind.ground) < names.index(kind.name) for kind in ROWS)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"only": ("kil",)}, "Did you mean kill?"),
        ({"nproc": 1}, "2 processes or more"),
        ({"steps": 3}, "6 steps or more"),
        ({"at_step": 0}, "at least one step"),
        ({"drill_timeout_s": 0.0}, "more than 0"),
        ({"command": ["torchrun", "train.py"]}, "is a launcher"),
        ({"command": ["train.py", "--batch", "{batch}"]}, "{batch} is not known"),
    ],
)
def test_what_cannot_be_reviewed_is_refused_before_anything_runs(tmp_path, given, says):
    with pytest.raises(UsageError, match=says.replace("?", r"\?").replace("{", r"\{")):
        PreflightSpec(**({"command": ["train.py"], "store": Store(tmp_path)} | given))
    assert list(tmp_path.iterdir()) == []
