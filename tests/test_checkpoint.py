"""Seals of checkpoints: what torch.distributed.checkpoint loads without an error is found before training resumes."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ddparity
from ddparity import checkpoint
from ddparity._errors import CheckpointDamaged, UsageError
from ddparity.checkpoint import Condition

DDPARITY = str(Path(sys.executable).with_name("ddparity"))
CONTENTS = {"a.bin": b"one", "sub/b.bin": b"two" * 100, "c.txt": b""}


def saved(folder: Path, contents=CONTENTS, *, age=10.0) -> Path:
    for name, content in contents.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        os.utime(path, (time.time() - age,) * 2)
    return folder


def whats(report):
    return {fault.file: fault.what for fault in report.faults}


def test_what_was_sealed_is_intact(tmp_path):
    made = checkpoint.seal(saved(tmp_path / "c"), step=7)
    report = checkpoint.verify(tmp_path / "c")
    assert (report.condition, report.checked, report.step, report.save_id) == (Condition.INTACT, 3, 7, made.save_id)
    assert sorted(made.files) == sorted(CONTENTS)


def test_a_single_file_has_its_seal_beside_it(tmp_path):
    file = saved(tmp_path, {"model.pt": b"weights"}) / "model.pt"
    checkpoint.seal(file)
    assert checkpoint.seal_path(file).name == "model.pt.ddparity-seal.json"
    assert checkpoint.verify(file).condition is Condition.INTACT
    file.write_bytes(b"weightS")
    assert checkpoint.verify(file).condition is Condition.DAMAGED


@settings(max_examples=40, deadline=None)
@given(st.binary(min_size=1, max_size=3000), st.data())
def test_any_flipped_bit_is_found(tmp_path_factory, content, data):
    folder = saved(tmp_path_factory.mktemp("flip") / "c", {"shard": content, "other": b"x"})
    checkpoint.seal(folder)
    bit = data.draw(st.integers(0, 8 * len(content) - 1))
    flipped = bytearray(content)
    flipped[bit // 8] ^= 1 << bit % 8
    path = folder / "shard"
    old = path.stat()
    path.write_bytes(flipped)
    os.utime(path, ns=(old.st_atime_ns, old.st_mtime_ns))  # as rot on the disk leaves it
    report = checkpoint.verify(folder)
    assert (report.condition, whats(report)) == (Condition.DAMAGED, {"shard": "changed"})
    assert "no longer what save" in report.text


def test_a_save_that_did_not_finish_is_called_a_mixture(tmp_path):
    folder = saved(tmp_path / "c")
    made = checkpoint.seal(folder)
    later = time.time() + 5
    (folder / "a.bin").write_bytes(b"new")
    os.utime(folder / "a.bin", (later, later))
    report = checkpoint.verify(folder)
    assert whats(report) == {"a.bin": "rewritten"}
    assert report.text.startswith(f"mixed of two saves: 2 of 3 files are those of save {made.save_id}")


def test_missing_truncated_and_added_files(tmp_path):
    folder = saved(tmp_path / "c")
    checkpoint.seal(folder)
    (folder / "a.bin").unlink()
    saved(folder, {"sub/b.bin": b"two"})
    saved(folder, {"d.bin": b"?"})
    report = checkpoint.verify(folder)
    assert report.condition is Condition.DAMAGED
    assert whats(report) == {"a.bin": "missing", "sub/b.bin": "truncated", "d.bin": "added"}


def test_what_was_only_added_is_not_sealed(tmp_path):
    folder = saved(tmp_path / "c")
    checkpoint.seal(folder)
    saved(folder, {"d.bin": b"?"})
    assert checkpoint.verify(folder).condition is Condition.NOT_SEALED


def test_a_damaged_seal_is_an_error_and_no_seal_is_none(tmp_path):
    folder = saved(tmp_path / "c")
    assert checkpoint.verify(folder).condition is Condition.NOT_SEALED
    checkpoint.seal_path(folder).write_text('{"schema": 1')
    with pytest.raises(CheckpointDamaged, match="cannot be read as a seal"):
        checkpoint.verify(folder)


def test_what_cannot_be_sealed(tmp_path):
    with pytest.raises(UsageError, match="no such checkpoint"):
        checkpoint.seal(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="holds no file"):
        checkpoint.seal(tmp_path / "empty")
    with pytest.raises(CheckpointDamaged, match=r"no \.metadata: the save did not finish"):
        checkpoint.seal(saved(tmp_path / "half", {"__0_0.distcp": b"x"}))
    linked = saved(tmp_path / "linked")
    (linked / "out").symlink_to(saved(tmp_path / "elsewhere") / "a.bin")
    with pytest.raises(UsageError, match="leads out of the checkpoint"):
        checkpoint.seal(linked)


def test_the_hook_seals_on_rank_0_only(tmp_path, monkeypatch):
    folder = saved(tmp_path / "c")
    monkeypatch.setenv("RANK", "1")
    assert ddparity.seal_checkpoint(folder) is None
    with pytest.raises(CheckpointDamaged, match="not sealed"):
        ddparity.verify_checkpoint(folder)
    monkeypatch.setenv("RANK", "0")
    assert ddparity.seal_checkpoint(folder, step=3).step == 3
    assert ddparity.verify_checkpoint(folder).condition is Condition.INTACT


def test_the_commands_and_their_exit_codes(tmp_path):
    folder = saved(tmp_path / "c")

    def run(*arguments):
        return subprocess.run(
            [DDPARITY, "checkpoint", *arguments], capture_output=True, text=True, timeout=60, check=False
        )

    assert run("verify", str(folder)).returncode == 3
    assert run("seal", str(folder), "--step", "5").returncode == 0
    done = run("verify", str(folder), "--json")
    assert (done.returncode, json.loads(done.stdout)["condition"], json.loads(done.stdout)["step"]) == (0, "INTACT", 5)
    (folder / "a.bin").unlink()
    done = run("verify", str(folder))
    assert done.returncode == 1
    assert done.stdout.startswith("DAMAGED")
    assert run("seal", str(tmp_path / "none")).returncode == 2


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_what_torch_loads_without_an_error(tmp_path):
    """The control group: DCP takes a directory that is half old and half new, and flipped bytes; the seal does not."""
    torch = pytest.importorskip("torch")
    import torch.distributed.checkpoint as dcp

    def save(folder, value):
        state = {name: torch.full((1000,), value) for name in ("a", "b")}
        dcp.save(state, storage_writer=dcp.FileSystemWriter(folder, thread_count=2, overwrite=True), no_dist=True)

    def load(folder):
        state = {name: torch.zeros(1000) for name in ("a", "b")}
        dcp.load(state, storage_reader=dcp.FileSystemReader(folder), no_dist=True)
        return sorted(float(value.mean()) for value in state.values())

    folder, newer = tmp_path / "step", tmp_path / "newer"
    save(folder, 1.0)
    ddparity.seal_checkpoint(folder)
    assert load(folder) == [1.0, 1.0]
    assert ddparity.verify_checkpoint(folder).checked == 3
    save(newer, 2.0)
    time.sleep(0.02)
    shard = sorted(newer.glob("*.distcp"))[0]
    shutil.copyfile(shard, folder / shard.name)  # a second save that was killed after its first shard
    assert load(folder) == [1.0, 2.0]
    with pytest.raises(CheckpointDamaged, match="mixed of two saves: 2 of 3 files"):
        ddparity.verify_checkpoint(folder)
