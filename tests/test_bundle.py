"""Bundles: nothing of the samples, names and secrets is in them, and they are judged as the trials were."""

import base64
import os
import shutil
import stat
import struct
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import pytest

import synthetic
from ddparity._errors import TraceError
from ddparity.bundle import open_bundle, plan_bundle, write_bundle
from ddparity.bundle._parts import SKETCHES, by_number, by_place
from ddparity.bundle._scrub import Scrubber
from ddparity.bundle._veil import INDEX_LIMIT, Veil
from ddparity.judge import Status, Verdict, compare_trials
from ddparity.trace import TrialStatus, read_trial

pytestmark = pytest.mark.timeout(240)
SCRIPTS = Path(__file__).parent / "scripts"
SECRET = "sk-proj-ABCDEFGHIJKLMNOPQRSTUVWX0123456789"
USER = "quentinmarlowe"


@dataclass(frozen=True)
class Case:
    """Two trials, their bundle, and what was judged of them where they stand."""

    path: Path
    verdict: Verdict
    entries: list
    cwd: Path


@pytest.fixture(scope="module")
def case(recorded: Callable, tmp_path_factory: pytest.TempPathFactory) -> Case:
    home = tmp_path_factory.mktemp("root") / "home" / USER / "secret-project-nightingale"
    home.mkdir(parents=True)
    shutil.copy(SCRIPTS / "bundled.py", home / "train.py")
    before = Path.cwd()
    os.chdir(home)
    try:
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        made = [
            recorded(name, ["env", "OMP_NUM_THREADS=1", sys.executable, *words, str(home / "train.py"), *more], **spec)
            for name, words, more, spec in (
                ("bundled.single", [], ["--api-key", SECRET], {"control": True}),
                ("bundled.ddp", launcher, ["--api-key", SECRET, "--bug"], {}),
            )
        ]
    finally:
        os.chdir(before)
    assert all(facts.status is TrialStatus.COMPLETED for facts in made)
    control, candidate = (recorded.store.path(facts.id) for facts in made)
    entries = plan_bundle([candidate])
    path = tmp_path_factory.mktemp("bundle") / "case.zip"
    write_bundle(entries, path)
    return Case(path, compare_trials(control, candidate), entries, home)


def told(verdict: Verdict) -> list:
    layers = [(name, layer.status, layer.checked) for name, layer in verdict.layers.items()]
    found = [(f.layer, f.step, f.phase, f.name, f.site, f.ranks, f.cause.code, f.follows) for f in verdict.findings]
    plan = verdict.merge_plan | {"weight": round(verdict.merge_plan["weight"], 6)}  # of sketches turned, to rounding
    return [layers, found, plan, [v.variable for v in verdict.varied]]


def test_a_bundle_is_judged_as_the_trials_were(case, tmp_path):
    head = open_bundle(case.path, tmp_path)
    ((control, candidate),) = head.pairs
    verdict = compare_trials(tmp_path / "trials" / control, tmp_path / "trials" / candidate)
    assert told(verdict) == told(case.verdict)
    assert verdict.layers["numerics"].status is Status.DEVIATES
    for ours, theirs in zip(verdict.findings, case.verdict.findings, strict=True):
        numbers = {key: value for key, value in theirs.evidence.items() if isinstance(value, float)}
        assert {key: ours.evidence[key] for key in numbers} == pytest.approx(numbers, rel=1e-4, abs=1e-12)


def encodings(text: bytes) -> dict[str, bytes]:
    values = np.frombuffer(text, dtype=np.uint8)
    return {
        "plain": text,
        "utf-16": text.decode().encode("utf-16-le"),
        "utf-32": text.decode().encode("utf-32-le"),
        "hex": text.hex().encode(),
        "base64": base64.b64encode(text)[:24],
        "float32": (values.astype(np.float32) / np.float32(255)).tobytes()[:16],
        "float64": (values.astype(np.float32) / np.float32(255)).astype(np.float64).tobytes()[:32],
        "int64": values.astype(np.int64).tobytes()[:64],
        "reversed": text[::-1],
    }


def test_samples_names_and_secrets_appear_in_no_encoding(case):
    contents = [(entry.name, entry.content) for entry in case.entries]
    planted = {"sample": b"PatientFileMarkerZebraQuartz", "secret": SECRET.encode(), "user": USER.encode()}
    planted |= {"project": b"secret-project-nightingale", "home": str(case.cwd.parent).encode()}
    for what, text in planted.items():
        for encoding, raw in encodings(text).items():
            assert [name for name, content in contents if raw in content] == [], (what, encoding)
    assert not [name for name, _ in contents if USER in name or "private" in name or name.endswith(".log")]


def test_identities_of_samples_cannot_be_checked_against_a_guess(case, recorded):
    trial = read_trial(recorded.store.path(next(f.id for f in recorded.store.trials() if f.name == "bundled.ddp")))
    ids = {int(i) for rank in trial.ranks for row in rank.samples for i in row.ids}
    hashes = {row.digest.hash for rank in trial.ranks for row in rank.digests} - {None}
    sketches = {row.digest.sketch.tobytes() for rank in trial.ranks for row in rank.digests}
    everything = b"".join(entry.content for entry in case.entries)
    everything += by_number(next(entry.content for entry in case.entries if entry.name == SKETCHES))
    assert len(ids) == 24
    assert not [value for value in ids | hashes if value > INDEX_LIMIT and struct.pack("<Q", value) in everything]
    assert not [raw for raw in sketches if raw in everything and any(raw)]


def test_every_entry_says_why_it_is_safe(case):
    assert all(entry.why for entry in case.entries)
    assert case.path.stat().st_mode & 0o077 == 0 or case.path.stat().st_size < 1 << 20


def test_the_veil_keeps_distances_equality_and_sums():
    veil, generator = Veil(), np.random.default_rng(0)
    one, two = generator.standard_normal((2, 128))
    numbers = [veil.sketch("w", row.tobytes()) for row in (one, two, one, one + two)]
    assert numbers == [0, 1, 0, 2]
    a, b, both = np.frombuffer(veil.sketches()).reshape(-1, 128)
    assert np.allclose(a + b, both)
    assert np.isclose(np.linalg.norm(a - b), np.linalg.norm(one - two))
    assert not np.allclose(a, one)
    assert (veil.hash("w", 5) + veil.hash("w", 7)) % 2**64 == veil.hash("w", 12)
    assert veil.hash("w", None) is None
    ids = veil.ids(np.array([3, INDEX_LIMIT + 9, 3, INDEX_LIMIT + 9], dtype=np.uint64))
    assert ids[0] == ids[2] == 3
    assert ids[1] == ids[3] != INDEX_LIMIT + 9


@pytest.mark.parametrize(
    "text",
    [
        "hf_abcdefghijklmnop", "ghp_0123456789abcdefghij", "AKIAIOSFODNN7EXAMPLE", "WANDB_API_KEY=0123abcd",
        "--auth-token=hunter22222", "https://bob:hunter2@example.org/x", "eyJhbGciOi.eyJzdWIiOiIx.c2lnbmF0dXJl",
    ],
)  # fmt: skip
def test_secrets_are_taken_out_of_texts(text, case):
    scrub = Scrubber([])
    secret = text.rpartition("=")[2] if "=" in text else "bob:hunter2" if "bob" in text else text
    assert secret not in scrub.text(f"run {text} now")
    assert "hunter9" not in scrub.command(["train.py", "--password", "hunter9", "--lr", "0.1"])
    assert scrub.command(["train.py", "--lr", "0.1"]) == ["train.py", "--lr", "0.1"]


def hostile(tmp_path: Path, *entries: tuple[zipfile.ZipInfo | str, bytes]) -> Path:
    path = tmp_path / "hostile.zip"
    head = msgspec.json.encode({"version": 1, "trials": ["a"], "pairs": []})
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("bundle.json", head)
        for name, content in entries:
            archive.writestr(name, content)
    return path


def link(name: str) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    return info


@pytest.mark.parametrize(
    "entry",
    [
        ("../evil.json", b"{}"),
        ("/etc/passwd", b"x"),
        ("trials/../../evil/trial.json", b"{}"),
        ("trials/a/private/output.log", b"x"),
        ("trials/a/rank-00000/evil.py", b"x"),
        ("trials/a/rank-00000/run.pt", b"x"),
        (link("trials/a/trial.json"), b"/etc/passwd"),
        ("sketches.f64", b"12345"),
    ],
)
def test_what_no_bundle_holds_is_refused(tmp_path, entry):
    folder = tmp_path / "out"
    folder.mkdir()
    with pytest.raises(TraceError, match=r"not a bundle that ddparity wrote .*ddparity bundle"):
        open_bundle(hostile(tmp_path, entry), folder)
    assert not list(folder.rglob("*"))
    assert not (tmp_path / "evil.json").exists()


def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr("ddparity.bundle._read.MAX_ENTRY_BYTES", 1 << 20)
    path = hostile(tmp_path, ("trials/a/trial.json", bytes(2 << 20)))
    assert path.stat().st_size < 1 << 14
    with pytest.raises(TraceError, match="too large"):
        open_bundle(path, tmp_path)


def test_what_is_no_zip_is_refused(tmp_path):
    (tmp_path / "x.zip").write_bytes(b"PK\x03\x04 nothing")
    for path in (tmp_path / "x.zip", tmp_path / "none.zip"):
        with pytest.raises(TraceError, match="not a bundle"):
            open_bundle(path, tmp_path)


@pytest.mark.slow
def test_eight_ranks_of_two_hundred_tensors_fit_in_twenty_megabytes(tmp_path):
    widths = (4,) + (16,) * 99 + (4,)
    training = synthetic.Training(world_size=8, widths=widths, steps=3, batch=16, optimizer="adam", lr=0.001)
    control = synthetic.write_trial(synthetic.as_control(training), tmp_path / "control")
    candidate = synthetic.write_trial(training, tmp_path / "candidate")
    assert len(training.parameters) == 200
    assert write_bundle(plan_bundle([control, candidate]), tmp_path / "case.zip") < 20e6


def test_numbers_ordered_by_the_place_of_their_bytes_come_back():
    numbers = np.random.default_rng(0).normal(size=(7, 128)).astype("<f8").tobytes()
    assert by_number(by_place(numbers)) == numbers
    assert by_place(numbers) != numbers
    assert by_number(by_place(b"")) == b""
