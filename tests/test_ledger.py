"""The ledger is an index: whatever happens to it, the files bring it back."""

import shutil
import sqlite3
import threading

import msgspec
import pytest

from ddparity.trace import write_atomically
from ddparity.trace._schema import TrialFacts, TrialStatus
from ddparity.trials import Ledger, Store


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "store")


def add(store: Store, name: str, status: TrialStatus = TrialStatus.COMPLETED) -> TrialFacts:
    trial_id, folder = store.create(name)
    facts = TrialFacts(id=trial_id, name=name, command=["python", "a b.py"], cwd="/", status=status, started=1.0)
    write_atomically(folder / "trial.json", msgspec.json.encode(facts))
    return facts


def names(store: Store) -> list[str]:
    with Ledger(store) as ledger:
        return sorted(row.name for row in ledger.trials())


def test_trials_are_entered_and_read_back(store):
    facts = add(store, "single")
    facts.exit_code = 0
    with Ledger(store) as ledger:
        ledger.put_trial(facts)
        row = ledger.trials()[0]
    assert (row.id, row.name, row.control, row.status, row.exit_code) == (facts.id, "single", False, "COMPLETED", 0)
    assert row.command == ["python", "a b.py"]


def test_a_trial_that_nobody_entered_is_listed_all_the_same(store):
    add(store, "single")
    assert names(store) == ["single"]


def test_a_running_trial_is_looked_at_again(store):
    facts = add(store, "single", TrialStatus.RUNNING)
    assert names(store) == ["single"]
    facts.status = TrialStatus.FAILED
    write_atomically(store.path(facts.id) / "trial.json", msgspec.json.encode(facts))
    with Ledger(store) as ledger:
        assert ledger.trials()[0].status == "FAILED"


def test_a_removed_trial_is_forgotten_with_its_comparisons(store):
    control, candidate = add(store, "single"), add(store, "ddp2")
    with Ledger(store) as ledger:
        ledger.put_comparison(control=control.id, candidate=candidate.id, status="PASS", verdict="{}")
    shutil.rmtree(store.path(candidate.id))
    with Ledger(store) as ledger:
        assert [row.name for row in ledger.trials()] == ["single"]
        assert ledger.comparisons() == []


def test_comparisons_are_kept_in_files_and_found_from_both_sides(store):
    control, candidate, other = add(store, "single"), add(store, "ddp2"), add(store, "ddp4")
    document = '{\n  "schema": 1,\n  "partial": false\n}'
    with Ledger(store) as ledger:
        written = ledger.put_comparison(control=control.id, candidate=candidate.id, status="DEVIATES", verdict=document)
    (store.root / "ledger.sqlite").unlink()
    with Ledger(store) as ledger:
        for trial_id in (control.id, candidate.id, None):
            (read,) = ledger.comparisons(trial_id)
            assert (read.id, read.status) == (written.id, "DEVIATES")
            assert msgspec.json.decode(read.verdict) == {"schema": 1, "partial": False}
        assert ledger.comparisons(other.id) == []


@pytest.mark.parametrize("content", [b"", b"not a database" * 1000, b"SQLite format 3\0" + b"\xff" * 8000])
def test_a_damaged_ledger_is_made_anew(store, content):
    add(store, "single")
    assert names(store) == ["single"]
    for file in store.root.glob("ledger.sqlite-*"):
        file.unlink()
    (store.root / "ledger.sqlite").write_bytes(content)
    assert names(store) == ["single"]


def test_damage_that_shows_late_is_repaired_too(store):
    for number in range(40):
        add(store, f"t{number}")
    assert len(names(store)) == 40
    path = store.root / "ledger.sqlite"
    data = bytearray(path.read_bytes())
    data[4096:] = b"\xff" * (len(data) - 4096)  # the first page, with version and tables, stays sound
    path.write_bytes(data)
    assert len(names(store)) == 40


def test_a_ledger_of_another_version_is_made_anew(store):
    add(store, "single")
    assert names(store) == ["single"]
    connection = sqlite3.connect(store.root / "ledger.sqlite")
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    assert names(store) == ["single"]


def test_damaged_comparison_files_are_left_out(store):
    candidate = add(store, "ddp2")
    folder = store.path(candidate.id) / "comparisons"
    folder.mkdir()
    (folder / "a.json").write_bytes(b"{")
    (folder / "b.json").write_bytes(b'{"id": 1}')
    with Ledger(store) as ledger:
        assert ledger.comparisons() == []


def test_looking_makes_no_store(store):
    assert names(store) == []
    assert not store.root.exists()


def test_a_store_without_room_for_a_ledger_is_listed_from_memory(store):
    add(store, "single")
    (store.root / "ledger.lock").mkdir()
    assert names(store) == ["single"]
    assert not (store.root / "ledger.sqlite").exists()


def test_many_may_write_at_once(store):
    all_facts = [add(store, f"t{number}") for number in range(6)]
    (store.root / "ledger.sqlite").unlink(missing_ok=True)
    faults: list[BaseException] = []

    def write(facts: TrialFacts) -> None:
        try:
            for _ in range(5):
                with Ledger(store) as ledger:
                    ledger.put_trial(facts)
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=write, args=(facts,)) for facts in all_facts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert faults == []
    assert names(store) == [f"t{number}" for number in range(6)]
