"""Fingerprints of the user's code, and controls that are refused because it changed."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import ddparity
from ddparity import StaleControl
from ddparity._errors import ExitCode
from ddparity.capture._fingerprint import REST, Fingerprints, pieces_of
from ddparity.judge import compare_trials
from ddparity.judge._stale import changed_code, check_fresh
from ddparity.trace import RankFacts, RankTrace, Trial, TrialFacts, read_trial
from ddparity.trials import Store

pytestmark = pytest.mark.timeout(180)
SCRIPT = """\
    import json, sys
    import torch
    from models import net
    from loss import loss_fn

    torch.manual_seed(0)
    model = net.build()
    optimizer = torch.optim.SGD(model.parameters(), lr=json.load(open("conf.json"))["lr"])
    inputs, targets = torch.randn(16, 4), torch.randint(0, 2, (16,))
    for _ in range(3):
        optimizer.zero_grad()
        loss_fn(model(inputs), targets).backward()
        optimizer.step()
"""
NET = """\
    import torch

    def build():
        return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
"""
LOSS = """\
    import torch

    def loss_fn(logits, targets):
        return torch.nn.functional.cross_entropy(logits, targets)

    def unused():
        pass
"""


def pieces(source: str) -> dict[str, str]:
    return pieces_of(textwrap.dedent(source).encode())


def test_a_module_is_hashed_piece_by_piece():
    found = pieces(
        """
        import torch
        RATE = 1

        def loss(x):
            return x

        class Net(torch.nn.Module):
            width = 3
            def forward(self, x):
                return x
        """
    )
    assert set(found) == {REST, "loss", "Net", "Net.forward"}
    assert len(set(found.values())) == 4


def test_comments_docstrings_and_layout_do_not_count():
    plain = 'def f(a,b):\n    return {"x": (a+b)}\nclass C:\n    def g(self): return 1\n'
    same = '"""Module."""\n\n\ndef f(a, b):\n    """Say."""  # why\n    # more\n    return {\'x\': a + b}\n'
    same += 'class C:\n    """Class."""\n    def g(self):\n        """Method."""\n        return 1\n'
    assert pieces_of(plain.encode()) == pieces_of(same.encode())


@pytest.mark.parametrize(
    ("old", "new", "changed"),
    [
        ("def f(): return 1", "def f(): return 2", {"f"}),
        ("def f(a=1): return a", "def f(a=2): return a", {"f"}),
        ("@one\ndef f(): pass", "@two\ndef f(): pass", {"f"}),
        ("class C:\n def g(self): return 1", "class C:\n def g(self): return 2", {"C.g"}),
        ("class C(A):\n x = 1", "class C(A):\n x = 2", {"C"}),
        ("class C(A): pass", "class C(B): pass", {"C"}),
        ("X = 1", "X = 2", {REST}),
        ("import a", "import b as a", {REST}),
        ("def f(): return 'a'", "def f(): return 'b'", {"f"}),
        ("if x:\n def f(): return 1", "if x:\n def f(): return 2", {REST}),
    ],
)
def test_what_changes_behaviour_counts(old, new, changed):
    ours, theirs = pieces_of(old.encode()), pieces_of(new.encode())
    assert {name for name in ours if theirs[name] != ours[name]} == changed


def test_a_source_that_is_not_python_is_refused():
    with pytest.raises(SyntaxError):
        pieces_of(b"def (")


def test_files_on_the_command_line_are_configuration_unless_the_run_writes_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "conf.yaml").write_text("lr: 1")
    (tmp_path / "log.json").write_text("{}")
    made = Fingerprints()
    arguments = ["--config=a/conf.yaml", "--out", "new.json", "--log", "log.json", "--lr", "0.1", "data.bin"]
    made.take_arguments(arguments)
    assert set(made.found) == {"a/conf.yaml", "log.json"}
    (tmp_path / "new.json").write_text("{}")
    (tmp_path / "log.json").write_text('{"loss": 1}')
    made.take_arguments(arguments)
    assert set(made.found) == {"a/conf.yaml"}
    assert set(made.sources) == {str(tmp_path / "a" / "conf.yaml")}


def trial(
    name: str,
    fingerprints: dict[str, str],
    *,
    started: float = 0.0,
    python: str = "3.11.7",
    script: str = "/a/train.py",
):
    facts = TrialFacts(id=name, name=name, command=["python", "train.py"], cwd="/", started=started, script=script)
    rank = RankFacts(rank=0, local_rank=0, world_size=1, pid=1, hostname="h", fingerprints=fingerprints)
    rank.versions = {"python": python}
    return Trial(Path("/t"), facts, [RankTrace(Path("/t"), rank)])


ONE = trial("single", {"train.py::main": "1", "loss.py::f": "1", "loss.py::gone": "1"}, started=1.0)


def test_the_same_code_is_fresh_and_what_one_side_lacks_does_not_count():
    assert (
        check_fresh(ONE, trial("b", {"train.py::main": "1", "loss.py::f": "1", "more.py::g": "2"}), allow_stale=False)
        == []
    )
    assert check_fresh(ONE, trial("b", {}), allow_stale=False) == []


def test_the_older_side_is_the_one_to_record_again():
    newer = trial("b", {"train.py::main": "1", "loss.py::f": "2"}, started=2.0)
    with pytest.raises(
        StaleControl, match=r"The control 'single' is stale.*Changed: loss.py::f\. Build it again: "
    ) as caught:
        check_fresh(ONE, newer, allow_stale=False)
    assert "ddparity record --control --name single -- python train.py && ddparity compare single b" in str(
        caught.value
    )
    older = trial("b", {"loss.py::f": "2"}, started=0.5)
    with pytest.raises(StaleControl, match=r"The candidate 'b' is older.*ddparity record --name b -- python train.py"):
        check_fresh(ONE, older, allow_stale=False)


def test_many_changes_are_counted():
    names = {f"m.py::f{index}": "1" for index in range(12)}
    with pytest.raises(StaleControl, match=r"m.py::f7 and 4 more"):
        check_fresh(trial("a", names), trial("b", dict.fromkeys(names, "2")), allow_stale=False)


def test_a_stale_control_that_is_allowed_is_noted():
    notes = check_fresh(ONE, trial("b", {"loss.py::f": "2"}), allow_stale=True)
    assert notes == ["--allow-stale: control and candidate ran different versions of loss.py::f"]


def test_two_scripts_of_one_name_are_two_programs():
    other = trial("b", {"train.py::main": "2", "loss.py::f": "1"}, script="/b/train.py")
    assert changed_code(ONE, other) == []
    assert changed_code(ONE, trial("b", {"train.py::main": "2"})) == ["train.py::main"]


def test_other_versions_of_python_are_not_held_against_each_other():
    (note,) = check_fresh(ONE, trial("b", {"loss.py::f": "2"}, python="3.13.1"), allow_stale=False)
    assert "Python 3.11 and 3.13" in note


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("ddparity")), *arguments]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with a control, and candidates recorded after one edit each."""
    folder = tmp_path_factory.mktemp("stale")
    (folder / "models").mkdir()
    (folder / "models" / "__init__.py").write_text("")
    (folder / "conf.json").write_text('{"lr": 0.1}')
    for name, text in (("train.py", SCRIPT), ("models/net.py", NET), ("loss.py", LOSS)):
        (folder / name).write_text(textwrap.dedent(text))
    train = ["--", sys.executable, "train.py", "--config=conf.json"]
    assert run(folder, "record", "--control", "--no-prove", "--name", "single", *train).returncode == ExitCode.PASS
    loss = folder / "loss.py"
    loss.write_text(loss.read_text() + "# a remark\n")
    assert run(folder, "record", "--name", "remark", *train).returncode == ExitCode.PASS
    loss.write_text(loss.read_text().replace("targets)", "targets, reduction='sum')"))
    assert run(folder, "record", "--name", "edited", *train).returncode == ExitCode.PASS
    return folder


def test_imports_inside_the_users_tree_are_followed_and_no_others(folder):
    facts = read_trial(Store(folder / ".ddparity").find("single")).ranks[0].facts
    assert {"train.py::<module>", "models/net.py::build", "loss.py::loss_fn", "conf.json"} <= set(facts.fingerprints)
    assert {Path(path).name for path in facts.sources} == {"train.py", "__init__.py", "net.py", "loss.py", "conf.json"}


def test_a_comment_does_not_make_a_control_stale(folder):
    done = run(folder, "compare", "single", "remark")
    assert done.returncode == ExitCode.PASS, done.stdout + done.stderr


def test_an_edited_loss_function_does(folder):
    done = run(folder, "compare", "single", "edited", "--json")
    assert (done.returncode, done.stdout) == (ExitCode.USAGE, "")
    assert "The control 'single' is stale" in done.stderr
    assert "Changed: loss.py::loss_fn. Build it again: ddparity record --control --name single -- " in done.stderr
    assert "train.py --config=conf.json && ddparity compare single edited" in done.stderr


def test_allow_stale_judges_and_says_so(folder):
    done = run(folder, "compare", "single", "edited", "--allow-stale", "--json")
    document = json.loads(done.stdout)
    assert document["notes"] == ["--allow-stale: control and candidate ran different versions of loss.py::loss_fn"]
    assert document["variable"] == "code"
    assert done.returncode == ExitCode.DEVIATES
    shown = json.loads(run(folder, "trials", "show", "edited", "--json").stdout)
    assert shown["comparisons"][0]["verdict"]["notes"] == document["notes"]


def test_from_python(folder):
    store = folder / ".ddparity"
    with pytest.raises(StaleControl):
        ddparity.compare("single", "edited", store=store)
    assert ddparity.compare("single", "edited", store=store, allow_stale=True).notes
    assert not compare_trials(Store(store).find("single"), Store(store).find("remark")).notes


def test_plan_on_the_command_line(folder):
    done = run(folder, "plan", "single", "edited")
    assert done.returncode == ExitCode.PASS
    assert done.stdout.startswith("from single to edited: one variable changed\n  code\n")
    document = json.loads(run(folder, "plan", "single", "edited", "--json").stdout)
    assert (document["variable"], document["trials"]) == ("code", [])
