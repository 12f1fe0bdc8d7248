"""``ddparity purge`` removes private folders and nothing else."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ddparity.cli._app import build
from ddparity.trials import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(tmp_path / "store")
    for name in ("one", "two"):
        trial_id, folder = store.create(name)
        facts = {"id": trial_id, "name": name, "command": ["true"], "cwd": "."}
        (folder / "trial.json").write_text(json.dumps(facts))
        (folder / "private").mkdir()
        (folder / "private" / "sequences.arrow").write_bytes(b"hashes")
    return store


def private(store: Store) -> list[str]:
    return sorted(store.path(i).name.split("-")[2] for i in store.ids() if (store.path(i) / "private").exists())


def run(store: Store, *words: str) -> int:
    return CliRunner().invoke(build(["purge"]), ["purge", *words, "--store", str(store.root)]).exit_code


def test_it_removes_what_is_private_of_the_trials_named(store: Store) -> None:
    assert run(store, "one") == 0
    assert private(store) == ["two"]
    assert all((store.path(i) / "trial.json").exists() for i in store.ids())


def test_it_removes_what_is_private_of_all(store: Store) -> None:
    assert run(store, "--all") == 0
    assert private(store) == []


@pytest.mark.parametrize("words", [[], ["one", "--all"], ["nobody"]])
def test_it_removes_nothing_where_it_is_not_told_what(store: Store, words: list[str]) -> None:
    assert run(store, *words) != 0
    assert private(store) == ["one", "two"]
