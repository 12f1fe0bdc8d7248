"""Where trials are kept and how one is found."""

import re
import subprocess
from pathlib import Path

import msgspec
import pytest

from ddparity._errors import ExitCode, TraceError, TrialNotFound, UsageError
from ddparity.trace import write_atomically
from ddparity.trace._schema import TrialFacts
from ddparity.trials import Store, check_name, new_trial_id, read_facts
from ddparity.trials._facts import find_script, git_facts, sha256_of


def add(store: Store, name: str) -> str:
    trial_id, folder = store.create(name)
    facts = TrialFacts(id=trial_id, name=name, command=["true"], cwd="/")
    write_atomically(folder / "trial.json", msgspec.json.encode(facts))
    return trial_id


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "store")


def test_an_id_tells_time_and_name_and_sorts():
    ids = [new_trial_id("ddp2") for _ in range(3)]
    assert all(re.fullmatch(r"\d{8}-\d{9}-ddp2-[0-9a-f]{4}", each) for each in ids)
    assert [each[:18] for each in ids] == sorted(each[:18] for each in ids)


@pytest.mark.parametrize("name", ["single", "ddp-2", "a.b_c", "7", "_x", "x" * 80])
def test_tame_names_are_allowed(name):
    assert check_name(name) == name


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../x", "a/b", "/etc", "a\0b", "a b", "-x", ".x", "x" * 81, "ä", "a\n", "a\\b"]
)
def test_other_names_are_refused_with_what_is_allowed(store, name):
    with pytest.raises(UsageError, match="Allowed are letters, digits") as error:
        store.create(name)
    assert error.value.exit_code == ExitCode.USAGE
    assert not store.root.exists()


@pytest.mark.parametrize("wanted", ["..", "../trials", "/etc", "a/../b", "x" * 5000, ""])
def test_no_path_leaves_the_store(store, wanted):
    add(store, "single")
    with pytest.raises(TrialNotFound):
        store.find(wanted)
    with pytest.raises(TrialNotFound):
        store.path(wanted)


def test_a_trial_is_found_by_id_name_and_beginning_of_its_id(store):
    old, new = add(store, "single"), add(store, "single")
    other = add(store, "ddp2")
    assert store.find(old).name == old
    assert store.find("single").name == max(old, new)
    assert store.find("ddp2").name == other
    assert store.find(old[:-1]).name == old
    assert store.ids() == sorted([old, new, other], reverse=True)


def test_a_name_wins_over_the_beginning_of_an_id(store):
    named = add(store, "2")
    add(store, "other")
    assert store.find("2").name == named


def test_a_beginning_that_fits_several_is_refused(store):
    for _ in range(2):
        add(store, "single")
    with pytest.raises(TrialNotFound, match=r"2 trials have an id that begins with '2'.*Give more of the id"):
        store.find("2")


def test_what_is_not_there_is_answered_with_what_is_near(store):
    add(store, "single")
    add(store, "ddp2")
    with pytest.raises(TrialNotFound) as error:
        store.find("singel")
    assert str(error.value) == (
        f"No trial 'singel' in the store '{store.root}'. Near it: single. "
        f"See: ddparity trials list --store {store.root}"
    )
    with pytest.raises(TrialNotFound, match=r"There are: ddp2, single\. See: ddparity trials list"):
        store.find("qqqqqq")


def test_an_empty_store_says_how_to_record(store):
    with pytest.raises(TrialNotFound, match=r"holds no trial\. Record one \(ddparity record --name NAME -- COMMAND\)"):
        store.find("single")
    assert not store.root.exists()


def test_which_store_is_used(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert Store.resolve("a", {"DDPARITY_HOME": "b"}).root == tmp_path / "a"
    assert Store.resolve(None, {"DDPARITY_HOME": str(tmp_path / "b")}).root == tmp_path / "b"
    assert Store.resolve(None, {}).root == tmp_path / ".ddparity"
    assert Store.resolve("~/x", {}).root == Path.home().resolve() / "x"


def test_a_store_must_be_a_folder(tmp_path):
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(UsageError, match=r"\(from --store\) is not a folder\. Name a folder with --store"):
        Store.resolve(str(file))
    with pytest.raises(UsageError, match="from DDPARITY_HOME"):
        Store.resolve(None, {"DDPARITY_HOME": str(file)})
    with pytest.raises(UsageError, match=r"cannot be written \(Not a directory\)"):
        Store(file / "deeper").create("single")


def test_a_store_of_our_own_making_stays_out_of_version_control(store, tmp_path):
    store.create("single")
    assert (store.root / ".gitignore").read_text() == "*\n"
    Store(tmp_path).create("single")
    assert not (tmp_path / ".gitignore").exists()


def test_writing_leaves_the_old_file_or_the_new_one(tmp_path):
    path = tmp_path / "trial.json"
    write_atomically(path, b"old")
    with pytest.raises(TypeError):
        write_atomically(path, "no bytes")  # type: ignore[arg-type]
    assert path.read_bytes() == b"old"
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    assert [each.name for each in tmp_path.iterdir()] == ["trial.json"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "damaged"),
        (b"{", "damaged"),
        (b"[]", "damaged"),
        (b"\xff\xfe", "damaged"),
        (b"[" * 100_000, "damaged"),
        (b" " * (5 << 20), "larger than"),
        (b'{"id": "x", "name": "x", "command": [], "cwd": "/", "schema": 99}', "schema 99.*Upgrade"),
    ],
)
def test_a_damaged_trial_is_a_clear_error_and_hides_no_other(store, content, message):
    good = add(store, "single")
    bad = add(store, "bad")
    (store.path(bad) / "trial.json").write_bytes(content)
    with pytest.raises(TraceError, match=message) as error:
        read_facts(store.path(bad))
    assert error.value.exit_code == ExitCode.INCONCLUSIVE
    assert [facts.id for facts in store.trials()] == [good]
    assert store.find("single").name == good


def test_the_folder_is_the_id_whatever_the_file_says(store):
    trial_id = add(store, "single")
    path = store.path(trial_id) / "trial.json"
    path.write_bytes(path.read_bytes().replace(trial_id.encode(), b"../../etc"))
    assert read_facts(path.parent).id == trial_id


def test_the_script_is_the_first_argument_that_is_a_python_file(tmp_path):
    (tmp_path / "train.py").write_text("1")
    command = ["torchrun", "missing.py", "train.py", "other.py"]
    assert find_script(command, tmp_path) == tmp_path / "train.py"
    assert find_script(["python", "-m", "train"], tmp_path) is None
    assert sha256_of(tmp_path / "train.py") == "6b86b273ff34fce19d6b804eff5a3f5747ada4eaa22f1d49c01e52ddb7875b4b"
    assert sha256_of(tmp_path) is None


def test_git_facts_never_fail(tmp_path, monkeypatch):
    facts = git_facts(tmp_path)
    assert facts.commit is None
    assert "not a git repository" in facts.reason
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git_facts(tmp_path).reason == "git is not installed"


def test_git_facts_tell_commit_and_changes(tmp_path):
    def git(*arguments):
        identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        subprocess.run(["git", "-C", str(tmp_path), *identity, *arguments], check=True, capture_output=True, timeout=30)

    git("init")
    (tmp_path / "train.py").write_text("1")
    git("add", ".")
    git("commit", "-m", "x")
    (tmp_path / "run.log").write_text("made by the first run")
    facts = git_facts(tmp_path)
    assert re.fullmatch("[0-9a-f]{40}", facts.commit or "")
    assert facts.dirty is False
    (tmp_path / "train.py").write_text("2")
    assert git_facts(tmp_path).dirty is True
