"""What a climb leaves in the store: the truth at every moment, whatever was killed, and how it is read."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ddparity._errors import CommandFailed, TraceError, UsageError
from ddparity.cli._app import build
from ddparity.trials import Store
from ddparity.trials import _ladder as ladder
from ddparity.trials._ladders import LadderResult, Ladders, RungResult
from ddparity.trials._rungs import LadderSpec
from test_ladder import FULL, TRAIN, Fake, spec

HERE = Path(__file__).parent
CLIMB = f"""
import sys
sys.path.insert(0, {str(HERE)!r})
from pathlib import Path
import pytest
from ddparity.trials import Store, _ladder
from ddparity.trials._rungs import LadderSpec
from test_ladder import FULL, Fake

fake = Fake(pytest.MonkeyPatch())
record = _ladder.record

def slow(given):
    if given.name.endswith("-2"):
        print("reached", flush=True)
        sys.stdin.read()
    return record(given)

_ladder.record = slow
_ladder.climb(LadderSpec(store=Store(Path("store")), global_batch=32, **FULL))
"""


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("pass")
    return tmp_path


def words(result: LadderResult) -> list[str]:
    return [rung.status for rung in result.rungs if rung.status != "SKIPPED"]


def test_after_every_rung_the_file_says_what_is_done_and_what_runs(train, monkeypatch):
    Fake(monkeypatch, ladder_3="DEVIATES")
    made = spec(train, **FULL)
    kept = Ladders(made.store)
    seen: list[list[str]] = []
    result = ladder.climb(made, lambda _: seen.append(words(kept.read("ladder"))))
    ahead = ["NOT_REACHED"] * 5
    assert seen[0] == ["RUNNING", *ahead]
    assert seen[2] == ["PASS", "RUNNING", *ahead[1:]]
    assert seen[6] == ["PASS", "PASS", "PASS", "RUNNING", *ahead[3:]]
    assert kept.read("ladder") == result
    assert (result.status, result.name, result.cwd) == ("DEVIATES", "ladder", str(train))
    assert 0 < result.started <= result.updated


def test_a_climb_that_is_killed_leaves_the_truth_and_goes_on(train, monkeypatch):
    process = subprocess.Popen(
        [sys.executable, "-c", CLIMB], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"reached\n"
    kept = Ladders(Store(train / "store"))
    running = kept.read("ladder")
    assert (running.status, words(running)[:3]) == ("RUNNING", ["PASS", "PASS", "RUNNING"])
    with pytest.raises(UsageError, match="is being climbed"):
        ladder.climb(spec(train, **FULL))
    process.send_signal(signal.SIGKILL)
    process.communicate()
    killed = kept.read("ladder")
    assert (killed.status, killed.stopped_at) == ("INTERRUPTED", 2)
    assert words(killed)[:3] == ["PASS", "PASS", "INTERRUPTED"]
    assert killed.rungs[2].reason == "the climb was killed while this rung ran"
    assert killed.next == killed.again
    Fake(monkeypatch)
    assert ladder.climb(spec(train, **FULL)).status == kept.read("ladder").status == "PASS"


def test_an_error_that_ends_the_climb_is_written_down(train, monkeypatch):
    Fake(monkeypatch)

    def fails(_given: Any) -> None:
        raise CommandFailed("The command could not be started.")

    monkeypatch.setattr(ladder, "record", fails)
    with pytest.raises(CommandFailed):
        ladder.climb(spec(train, **FULL))
    found = Ladders(spec(train).store).read("ladder")
    assert (found.status, found.rungs[0].status) == ("FAILED", "FAILED")
    assert found.rungs[0].reason == "The command could not be started."


def test_a_store_that_cannot_be_written_does_not_end_the_climb(train, monkeypatch):
    Fake(monkeypatch)

    def full(_kept: Any, _result: LadderResult) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Ladders, "write", full)
    said: list[str] = []
    assert ladder.climb(spec(train, **FULL), said.append).status == "PASS"
    assert any("cannot be written (No space left on device); the climb goes on" in line for line in said)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        FULL,
        {"recipe": Path("my recipe.py"), "command": [], "full": True, "timeout_s": 12.5},
        {"command": ["train.py", "{parallel}", "a b", "{dtype}"], "parallel": ("ddp", "fsdp"), "name": "other"},
        {
            "command": ["env", "A=$B", "python", "-m", "x", "-y"],
            "dtypes": ("float32", "bfloat16"),
            "steps": "1:3",
        },
    ],
)
def test_the_command_that_climbs_again_means_the_same_ladder(train, monkeypatch, settings):
    made = spec(train, **settings)
    given: list[LadderSpec] = []

    def taken(wanted: LadderSpec, _say: Any) -> LadderResult:
        given.append(wanted)
        return LadderResult(status="PASS", rungs=[])

    monkeypatch.setattr(ladder, "climb", taken)
    arguments = shlex.split(made.as_command())[1:]
    with pytest.raises(SystemExit):
        build(arguments)(arguments)
    (read,) = given
    assert str(read.store) == str(made.store)
    for name in ("command", "nproc", "global_batch", "accum", "dtypes", "parallel", "recipe", "steps", "full", "name"):
        assert getattr(read, name) == getattr(made, name), name
    assert read.timeout_s == made.timeout_s


@pytest.mark.parametrize("name", ["", "..", "../ladder", "a/b", "a\0b", "x" * 81, ".hidden", "nobody", "ladder.json"])
def test_names_of_no_ladder(train, name):
    kept = Ladders(Store(train / "store"))
    with pytest.raises(UsageError, match="It holds none"):
        kept.read(name)
    kept.folder.mkdir(parents=True)
    kept.write(LadderResult(name="ladder", status="PASS", rungs=[]))
    with pytest.raises(UsageError, match="There are: ladder"):
        kept.read(name)


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"status": 3, "rungs": []}', b"\xff\xfe", b'{"rungs": []}'])
def test_a_damaged_file_is_told_as_that(train, data):
    kept = Ladders(Store(train / "store"))
    kept.folder.mkdir(parents=True)
    (kept.folder / "bad.json").write_bytes(data)
    with pytest.raises(TraceError, match="is damaged"):
        kept.read("bad")


def test_the_command_lists_and_shows(train, monkeypatch, capsys):
    def run(*arguments: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as caught:
            build(arguments)(list(arguments))
        return int(caught.value.code or 0), capsys.readouterr().out

    assert "holds no ladder" in run("ladders", "--store", "store")[1]
    Fake(monkeypatch, ladder_4_nproc2="DEVIATES")
    ladder.climb(spec(train, **FULL))
    ladder.climb(spec(train, name="second", command=TRAIN, nproc=(1,)))
    Ladders(Store(train / "store")).folder.joinpath("bad.json").write_text("{")
    lines = run("ladders", "--store", "store")[1].splitlines()
    assert [line.split()[0] for line in lines] == ["NAME", "second", "ladder", "damaged:"]
    assert "rung 4, world_size" in lines[2]
    document = json.loads(run("ladders", "--store", "store", "--json")[1])
    assert [each["name"] for each in document["ladders"]] == ["second", "ladder"]
    assert len(document["damaged"]) == 1
    code, text = run("ladders", "ladder", "--store", "store")
    assert (code, "DEVIATES: stopped at rung 4, where world_size changes" in text) == (1, True)
    code, text = run("ladders", "ladder", "--store", "store", "--json")
    assert (code, json.loads(text)["stopped_at"]) == (1, 4)


def test_what_is_no_file_of_ours_is_not_listed(train):
    kept = Ladders(Store(train / "store"))
    kept.folder.mkdir(parents=True)
    for name in ("one", "two"):
        kept.write(LadderResult(name=name, status="PASS", rungs=[RungResult(number=0, title="x", status="PASS")]))
        os.utime(kept.folder / f"{name}.json", (time.time(), time.time() + (name == "one")))
    (kept.folder / "folder.json").mkdir()
    (kept.folder / "link.json").symlink_to("/etc/passwd")
    (kept.folder / ".one.json.tmp").write_text("x")
    (kept.folder / "one.lock").write_text("")
    assert kept.names() == ["one", "two"]
    assert msgspec.json.decode((kept.folder / "one.json").read_bytes())["schema"] == 1
