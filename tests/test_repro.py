"""Reproductions: made-up inputs fit their description, no value of the data comes along, and findings show again."""

import ast
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ddparity._errors import ExitCode, UsageError
from ddparity.bundle._scrub import Scrubber
from ddparity.capture._describe import NotDescribable, describe, joined
from ddparity.capture._made_up import made_up
from ddparity.repro import Product, ReproOptions, make_repro, reproduce
from ddparity.repro._fields import named_fields
from ddparity.repro._layout import Layout
from ddparity.repro._render import _literal
from ddparity.repro._run import _write_stand_ins
from ddparity.repro._sources import cleaned, imported, needs_and_stand_ins
from ddparity.trace import TrialStatus
from ddparity.trace._inputs import InputSpecs
from test_bundle import encodings

SCRIPTS = Path(__file__).parent / "scripts"
ZOO = Path(__file__).parents[1] / "zoo"
MARK = b"PatientFileMarkerZebraQuartz"
USER = "quentinmarlowe"
SECRET = "sk-proj-ABCDEFGHIJKLMNOPQRSTUVWX0123456789"
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool]


# -- descriptions and what is made up of them


@given(
    st.sampled_from(DTYPES),
    st.lists(st.integers(0, 5), max_size=3),
    st.floats(-1e4, 1e4),
    st.floats(0, 1e4),
    st.integers(0, 100),
)
@settings(max_examples=60, deadline=None)
def test_what_is_made_up_fits_its_description(dtype, shape, low, width, seed) -> None:
    drawn = torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * width + low
    value = (drawn.abs() % 200 if dtype == torch.uint8 else drawn).to(dtype)
    spec = describe(value)
    found = made_up(spec, "x")
    assert (found.shape, found.dtype) == (value.shape, value.dtype)
    if value.numel():
        room = 0.1 * float(value.double().abs().max()) + 1e-6
        assert float(value.double().min()) - room <= float(found.double().min())
        assert float(found.double().max()) <= float(value.double().max()) + room


@given(st.lists(st.floats(-1e9, 1e9).filter(lambda x: x != round(x)), min_size=1, max_size=8))
@settings(deadline=None)
def test_extremes_of_fractions_are_rounded_outwards_and_are_no_values_of_the_data(values: list[float]) -> None:
    spec = describe(torch.tensor(values, dtype=torch.float64))
    assert spec.low is not None
    assert spec.high is not None
    assert spec.low <= min(values)
    assert spec.high >= max(values)
    assert float(f"{spec.low:.2g}") == spec.low
    assert float(f"{spec.high:.2g}") == spec.high


def test_the_same_name_makes_the_same_values_whatever_the_state_of_the_generators() -> None:
    spec = describe({"x": torch.rand(4, 3), "y": [1, 2, 3]})
    torch.manual_seed(1)
    one = made_up(spec, "loader/0")
    state = torch.get_rng_state()
    two = made_up(spec, "loader/0")
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(one["x"], two["x"])
    assert one["y"] == two["y"]
    assert not torch.equal(one["x"], made_up(spec, "loader/1")["x"])


@pytest.mark.parametrize("left", [False, True])
def test_rows_that_were_filled_up_end_together_in_all_tensors_of_a_batch(left: bool) -> None:
    tokens, targets, lengths = (
        torch.randint(1, 50, (16, 12)),
        torch.randint(0, 50, (16, 12)),
        torch.randint(3, 12, (16,)),
    )
    filled = torch.arange(12)[None] >= lengths[:, None]
    filled = filled.flip(1) if left else filled
    spec = describe((tokens.masked_fill(filled, 0), targets.masked_fill(filled, -100), (~filled).long()))
    assert [item.padding.left for item in spec.items if item.padding] == [left] * 3
    assert spec.items[1].padding.shortest == int(lengths.min())
    assert spec.items[1].low >= 0  # the filling is no value of the targets
    made = made_up(spec, "x")
    assert torch.equal(made[0] == 0, made[1] == -100)
    assert torch.equal(made[1] == -100, made[2] == 0)
    assert len({int(row.sum()) for row in made[0] == 0}) > 3


def test_random_numbers_are_not_taken_for_filling() -> None:
    torch.manual_seed(0)
    assert describe(torch.randint(0, 2, (32, 20))).padding is None
    assert describe(torch.rand(8, 8)).padding is None
    assert describe(torch.arange(10).expand(4, 10)).counted


def test_batches_of_changing_structure_cannot_be_described_and_are_not_guessed() -> None:
    with pytest.raises(NotDescribable, match="changing structure: tensor float32, then tensor int64"):
        joined(describe(torch.ones(2)), describe(torch.ones(2).long()))
    with pytest.raises(NotDescribable, match="a object"):
        describe({"x": object()})


def test_a_dictionary_keyed_by_what_it_holds_is_data() -> None:
    one = {"input_ids": torch.ones(2, 3), "patient_quartz": torch.ones(2)}
    specs = InputSpecs(streams={"feed": describe(one)})
    assert not named_fields(specs, "loss(batch)").streams
    assert "keys of a dictionary are data" in named_fields(specs, "").problems[0]
    assert named_fields(specs, "batch['patient_quartz']").streams
    again = InputSpecs(streams={"feed": joined(describe(one), describe(one))})
    assert named_fields(again, "model(**batch)").streams


def test_of_what_several_processes_saw_the_fuller_description_is_taken() -> None:
    one, two = describe({"x": torch.ones(2)}), describe({"x": torch.ones(3)})
    parent = InputSpecs(streams={"feed": joined(one, two)}, readers={"numpy.load": [one, two]}, files=["/a"])
    child = InputSpecs(streams={"feed": one, "more": two}, readers={"numpy.load": [one]}, files=["/b", "/a"])
    for found in (parent.taking(child), child.taking(parent)):
        assert found.streams == {"feed": joined(one, two), "more": two}
        assert found.readers == {"numpy.load": [one, two]}
        assert sorted(found.files) == ["/a", "/b"]


# -- sources, commands, the script


def scrubber(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scrubber:
    monkeypatch.setenv("HOME", f"/home/{USER}")
    return Scrubber([])


def test_names_places_and_keys_leave_the_literals_and_the_program_stays(tmp_path, monkeypatch) -> None:
    text = (
        f"# by {USER}\napi_key = 'Zq81mWv7Rk20Tx95Lp'\nnum_tokens = total.sum()\nprint('tokens: %d' % num_tokens)\n"
        f"pad_token = '<pad>'\npath = '/home/{USER}/x/data.csv'\nstat = open('/proc/self/statm')\n"
        f"doc = '''one\n{USER} two\n''' + f'{{path}} {SECRET}'\n"
    )
    found = cleaned(text, scrubber(tmp_path, monkeypatch))
    assert not [word for word in (USER, SECRET, "Zq81mWv7Rk20Tx95Lp") if word in found]
    assert "open('/proc/self/statm')" in found
    assert "print('tokens: %d' % num_tokens)" in found
    assert "pad_token = '<pad>'" in found
    assert [type(node) for node in ast.walk(ast.parse(found))] == [type(node) for node in ast.walk(ast.parse(text))]


@given(st.text(alphabet=st.sampled_from("ab'\"\\\n\r\0{}#é "), max_size=60))
def test_a_source_stands_in_the_script_as_it_is(text: str) -> None:
    assert ast.literal_eval(_literal(text)) == text


def test_a_command_names_no_place_of_this_machine(tmp_path: Path) -> None:
    cwd, lib = tmp_path / "work", tmp_path / "lib"
    for path in (cwd / "train.py", lib / "nets" / "__init__.py", lib / "nets" / "mlp.py", cwd / "conf" / "a.yaml"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    layout = Layout(cwd, [cwd / "train.py", lib / "nets" / "__init__.py", lib / "nets" / "mlp.py", cwd / "conf/a.yaml"])
    assert layout.targets[lib / "nets" / "mlp.py"] == "elsewhere/1/nets/mlp.py"
    assert layout.roots == [".", "conf", "elsewhere/1"]
    words = ["env", "OMP_NUM_THREADS=1", "/opt/x/bin/torchrun", "--nproc-per-node=2", str(cwd / "train.py"), "--config"]
    words += ["conf/a.yaml", f"--out={cwd}/runs/1", "--data", f"/home/{USER}/notes.csv", "--api-key", "hunter2-abcdef"]
    assert layout.command(words, Scrubber([])) == [
        "env", "OMP_NUM_THREADS=1", "{python}", "-m", "torch.distributed.run", "--nproc-per-node=2", "train.py",
        "--config", "conf/a.yaml", "--out=runs/1", "--data", "elsewhere/paths/notes.csv", "--api-key", "<SECRET>",
    ]  # fmt: skip


def test_a_package_of_which_only_data_is_taken_need_not_be_there(tmp_path: Path) -> None:
    reader = "sklearn.datasets.load_digits"
    taken = imported({"a.py": "import os, torch, nets\nfrom sklearn.datasets import load_digits\n"}, ["a", "nets"])
    assert needs_and_stand_ins(taken, [reader]) == (["torch"], [reader])
    assert needs_and_stand_ins(taken, []) == (["sklearn", "torch"], [])
    more = imported({"a.py": "import torch, sklearn.metrics\nfrom sklearn.datasets import load_digits\n"}, [])
    assert needs_and_stand_ins(more, [reader]) == (["sklearn", "torch"], [])
    _write_stand_ins(tmp_path, [reader])
    code = "from sklearn.datasets import load_digits\nload_digits()"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "only a stand-in" in done.stderr


def a_case(**changes: object) -> dict:
    expected = {"layer": "numerics", "step": 0, "phase": "loss", "name": "loss", "cause": "x"}
    return {"version": 1, "control": ["{python}", "a.py"], "candidate": [], "expected": expected} | changes


def test_a_script_that_cannot_run_says_why_and_what_to_do(capsys: pytest.CaptureFixture, tmp_path: Path) -> None:
    assert reproduce(a_case(version=9), {}) == ExitCode.USAGE
    assert reproduce(a_case(steps=3), {}) == ExitCode.USAGE
    assert reproduce(a_case(needs=["no_such_package"]), {}) == ExitCode.USAGE
    assert reproduce(a_case(), {"../a.py": ""}) == ExitCode.USAGE
    said = capsys.readouterr().err
    for words in ("version 9", "CASE was changed", "pip install no_such_package", "does not stay in the folder"):
        assert words in said
    assert reproduce(a_case(), {"a.py": "import torch\nraise ValueError('a reason')\n"}) == ExitCode.COMMAND_FAILED
    assert "the control does not run here: exit code 1 (ValueError: a reason)" in capsys.readouterr().out


# -- a training whose data stands in a file


@dataclass(frozen=True)
class Made:
    """A script that was made, of which trials, and what was in the data."""

    product: Product
    text: str
    folder: Path
    control: Path
    candidate: Path


def write_data(path: Path) -> None:
    """Write the archive that the script reads: padded rows, weights that hold the mark, and a note a sample."""
    generator = np.random.default_rng(7)
    tokens = generator.integers(1, 38, (24, 10))
    targets = np.roll(tokens, -1, 1)
    for row, length in enumerate(generator.integers(3, 11, 24)):
        tokens[row, length:], targets[row, length:] = 0, -100
    tokens[0, :6] = 39
    weights = np.resize(np.frombuffer(MARK, dtype=np.uint8), 24).astype(np.float32) / np.float32(255)
    np.savez(path, input_ids=tokens, labels=targets, weights=weights, notes=np.array([MARK.decode()] * 24))


def make(recorded: Callable, home: Path, way: str, bug: str, *, nproc: int, check: bool, key: str) -> Made:
    home.mkdir(parents=True, exist_ok=True)
    shutil.copy(SCRIPTS / "repro_inputs.py", home / "train.py")
    write_data(home / "notes.npz")
    before = Path.cwd()
    os.chdir(home)
    try:
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={nproc}"] if nproc > 1 else []
        folders = []
        for name, words, more in (("single", [], []), ("faulty", launcher, ["--bug", bug])):
            command = ["env", "OMP_NUM_THREADS=1", sys.executable, *words, "train.py", str(home / "notes.npz")]
            command += ["--way", way, "--hub-token", SECRET, *more]
            facts = recorded(f"{key}.{name}", command, control=name == "single")
            assert facts.status is TrialStatus.COMPLETED
            folders.append(recorded.store.path(facts.id))
        output = home / "repro.py"
        control, candidate = folders
        product = make_repro(
            ReproOptions(control=control, candidate=candidate, output=output, check=check, timeout_s=90)
        )
    finally:
        os.chdir(before)
    return Made(product, output.read_text(), home, control, candidate)


@pytest.fixture(scope="module")
def made(recorded: Callable, tmp_path_factory: pytest.TempPathFactory) -> Made:
    home = tmp_path_factory.mktemp("root") / "home" / USER / "secret-project-nightingale"
    return make(recorded, home, "loader", "half", nproc=1, check=False, key="repro.private")


def test_nothing_of_the_data_and_of_the_machine_is_in_the_script(made: Made) -> None:
    planted = {"sample": MARK, "secret": SECRET.encode(), "user": USER.encode(), "token": b"Zq81mWv7Rk20Tx95Lp"}
    planted |= {"project": b"secret-project-nightingale", "folder": str(made.folder.parent).encode()}
    for what, text in planted.items():
        for encoding, raw in encodings(text).items():
            assert raw not in made.text.encode(), (what, encoding)
    data = np.load(made.folder / "notes.npz")
    shown = [f"{value:.{digits}g}" for value in data["weights"].tolist() for digits in (4, 8, 17)]
    assert not [value for value in shown if value in made.text]
    assert repr(data["input_ids"][3].tolist())[1:-1] not in made.text


def test_the_script_says_what_it_holds_and_what_was_replaced(made: Made) -> None:
    head = ast.get_docstring(ast.parse(made.text))
    assert head is not None
    assert "It holds the source of train.py" in head
    assert "batches that loaders or ddparity.feed hand out" in head
    assert "Needs: ddparity, numpy, torch." in head
    assert made.product.code is None
    assert [note for note in made.product.notes if "reads 1 file of data (.npz)" in note]
    assert made.product.case.inputs.files == []


def test_a_source_that_was_changed_since_is_refused_by_name(made: Made, tmp_path: Path) -> None:
    script = made.folder / "train.py"
    text = script.read_text()
    options = ReproOptions(control=made.control, candidate=made.candidate, output=tmp_path / "r.py", check=False)
    try:
        script.write_text(text + "\n")
        with pytest.raises(UsageError, match=r"train.py' was changed since the trial was recorded. Record control"):
            make_repro(options)
        script.unlink()
        with pytest.raises(UsageError, match=r"train.py' ran in the trial and cannot be read here \(No such file"):
            make_repro(options)
    finally:
        script.write_text(text)
    with pytest.raises(UsageError, match="has no finding: there is nothing to reproduce"):
        make_repro(ReproOptions(control=made.control, candidate=made.control, output=tmp_path / "r.py"))


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("way", ["loader", "feed", "array", "own"])
def test_a_fault_shows_without_the_data_however_it_enters(recorded, tmp_path, way: str) -> None:
    made = make(recorded, tmp_path, way, "double", nproc=2, check=True, key=f"repro.{way}")
    assert made.product.said == "reproduced: numerics: backward head.bias at step 0 (grad.double_averaged)"
    assert made.product.case.is_made_up == (way != "own")


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_fault_that_needs_a_certain_sample_is_said_not_to_reproduce(recorded, tmp_path) -> None:
    made = make(recorded, tmp_path, "loader", "outlier", nproc=2, check=True, key="repro.outlier")
    assert made.product.code == ExitCode.PASS
    assert made.product.said.startswith("not reproduced: numerics")


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", ["uneven_tokens_ddp", "ddp_double_divide", "unfreeze_after_wrap"])
def test_rows_of_the_zoo_show_their_finding_from_the_script_alone(recorded, tmp_path, name: str) -> None:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    folders = []
    for kind, words, more in (("single", [], []), ("faulty", launcher, ["--bug", name])):
        command = ["env", "OMP_NUM_THREADS=1", sys.executable, *words, str(ZOO / f"{name}.py"), *more, "--steps", "8"]
        folders.append(recorded.store.path(recorded(f"{name}.{kind}", command, control=kind == "single").id))
    output = tmp_path / "repro.py"
    product = make_repro(ReproOptions(control=folders[0], candidate=folders[1], output=output, timeout_s=90))
    assert product.code == ExitCode.DEVIATES, product.output
    assert json.dumps(str(ZOO))[1:-1] not in output.read_text()
