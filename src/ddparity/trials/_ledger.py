"""The ledger: an index of trials and comparisons in ``ledger.sqlite``.

The files are the truth. A ledger that is missing, damaged or of another version is built again from the folders of
the trials, and every opening brings it up to date with them: a run that died before it could tell is listed too.
In a store that cannot be written the index is kept in memory.
"""

import contextlib
import fcntl
import sqlite3
import time
from collections.abc import Generator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from ddparity._errors import TraceError
from ddparity.trace._atomic import write_atomically
from ddparity.trace._schema import TrialFacts, TrialStatus
from ddparity.trials._store import Store, new_trial_id, read_facts

LEDGER_VERSION = 1
_BUSY_SECONDS = 10.0
_MAX_COMPARISON_BYTES = 64 << 20
_TABLES = """
CREATE TABLE IF NOT EXISTS trials (
    id TEXT PRIMARY KEY, name TEXT NOT NULL, control INTEGER NOT NULL, status TEXT NOT NULL, exit_code INTEGER,
    created REAL NOT NULL, command TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS trials_by_name ON trials (name, created);
CREATE TABLE IF NOT EXISTS comparisons (
    id TEXT PRIMARY KEY, control TEXT NOT NULL, candidate TEXT NOT NULL, created REAL NOT NULL, status TEXT NOT NULL,
    verdict TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS comparisons_by_candidate ON comparisons (candidate, created);
"""


class TrialRow(msgspec.Struct, kw_only=True):
    """One trial as the ledger lists it."""

    id: str
    name: str
    control: bool
    status: str
    exit_code: int | None
    created: float
    command: list[str]


class ComparisonRow(msgspec.Struct, kw_only=True):
    """One comparison as a list has it, without its verdict."""

    id: str
    control: str
    candidate: str
    created: float
    status: str


class Comparison(msgspec.Struct, kw_only=True):
    """One comparison; ``verdict`` is the document of ``compare --json``, as it was written."""

    id: str
    control: str
    candidate: str
    created: float
    status: str
    verdict: msgspec.Raw


class Ledger:
    """The open ledger of a store; use it as a context manager.

    Args:
        store: The store; a folder that is not there is not made.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self.path = store.root / "ledger.sqlite"
        try:
            self._connection = self._opened()
        except (OSError, sqlite3.OperationalError):  # no folder, or no right to write
            self._connection = _with_tables(sqlite3.connect(":memory:"))
        try:
            self.sync()
        except (OSError, sqlite3.OperationalError):  # a full disk
            self._connection.close()
            self._connection = _with_tables(sqlite3.connect(":memory:"))
            self.sync()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def put_trial(self, facts: TrialFacts) -> None:
        """Enter a trial, or what has become of it."""
        row = (
            facts.id,
            facts.name,
            int(facts.control),
            facts.status.value,
            facts.exit_code,
            facts.started,
            msgspec.json.encode(facts.command).decode(),
        )
        with self._connection:
            self._connection.execute("INSERT OR REPLACE INTO trials VALUES (?, ?, ?, ?, ?, ?, ?)", row)

    def put_comparison(self, *, control: str, candidate: str, status: str, verdict: str) -> Comparison:
        """Store a comparison in the candidate's folder and enter it.

        Args:
            control: Id of the control.
            candidate: Id of the candidate.
            status: What it came to, for example ``DEVIATES``.
            verdict: The whole verdict as a JSON document.

        Raises:
            OSError: The candidate's folder cannot be written.
        """
        comparison = Comparison(
            id=new_trial_id("comparison"),
            control=control,
            candidate=candidate,
            created=time.time(),
            status=status,
            verdict=msgspec.Raw(verdict.encode()),
        )
        folder = self.store.path(candidate) / "comparisons"
        folder.mkdir(exist_ok=True)
        write_atomically(folder / f"{comparison.id}.json", msgspec.json.encode(comparison))
        self._enter([comparison])
        return comparison

    def trials(self) -> list[TrialRow]:
        """Return every trial, the newest first."""
        rows = self._rows(
            "SELECT id, name, control, status, exit_code, created, command FROM trials ORDER BY created DESC, id DESC"
        )
        return [
            TrialRow(
                id=trial_id,
                name=name,
                control=bool(control),
                status=status,
                exit_code=exit_code,
                created=created,
                command=msgspec.json.decode(command, type=list[str]),
            )
            for trial_id, name, control, status, exit_code, created, command in rows
        ]

    def comparisons(self, trial_id: str | None = None) -> list[Comparison]:
        """Return the comparisons (those in which ``trial_id`` took part), the newest first."""
        rows = self._rows(
            "SELECT id, control, candidate, created, status, verdict FROM comparisons "
            "WHERE ?1 IS NULL OR control = ?1 OR candidate = ?1 ORDER BY created DESC, id DESC",
            (trial_id,),
        )
        return [
            Comparison(
                id=comparison_id,
                control=control,
                candidate=candidate,
                created=created,
                status=status,
                verdict=msgspec.Raw(verdict.encode()),
            )
            for comparison_id, control, candidate, created, status, verdict in rows
        ]

    def comparison_rows(self, trial_id: str, limit: int) -> list[ComparisonRow]:
        """Return the newest comparisons in which a trial took part, without their verdicts."""
        rows = self._rows(
            "SELECT id, control, candidate, created, status FROM comparisons "
            "WHERE control = ?1 OR candidate = ?1 ORDER BY created DESC, id DESC LIMIT ?2",
            (trial_id, limit),
        )
        names = ("id", "control", "candidate", "created", "status")
        return [ComparisonRow(**dict(zip(names, row, strict=True))) for row in rows]

    def sync(self) -> None:
        """Bring the index up to date with the folders: new trials, ended ones, removed ones."""
        known = dict(self._rows("SELECT id, status FROM trials"))
        there = self.store.ids()
        for trial_id in there:
            if known.get(trial_id, TrialStatus.RUNNING.value) == TrialStatus.RUNNING.value:
                with contextlib.suppress(TraceError):
                    self.put_trial(read_facts(self.store.path(trial_id)))
            if trial_id not in known:
                self._enter(_comparison_files(self.store.path(trial_id)))
        for gone in known.keys() - set(there):
            with self._connection:
                self._connection.execute("DELETE FROM trials WHERE id = ?", (gone,))
                self._connection.execute("DELETE FROM comparisons WHERE candidate = ?", (gone,))

    def _enter(self, comparisons: list[Comparison]) -> None:
        rows = [(c.id, c.control, c.candidate, c.created, c.status, bytes(c.verdict).decode()) for c in comparisons]
        with self._connection:
            self._connection.executemany("INSERT OR REPLACE INTO comparisons VALUES (?, ?, ?, ?, ?, ?)", rows)

    def _rows(self, query: str, parameters: tuple[Any, ...] = ()) -> list[Any]:
        try:
            return self._connection.execute(query, parameters).fetchall()
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):
                raise
        self.rebuild()
        return self._connection.execute(query, parameters).fetchall()

    def rebuild(self) -> None:
        """Throw the index away and make it again from the files."""
        self._connection.close()
        with _locked(self.path.with_suffix(".lock")):
            self._connection = _made_anew(self.path)
        self.sync()

    def _opened(self) -> sqlite3.Connection:
        with _locked(self.path.with_suffix(".lock")):
            try:
                connection = _connect(self.path)
            except sqlite3.OperationalError:  # busy, full, no right to write: making it anew would not help
                raise
            except sqlite3.DatabaseError:
                return _made_anew(self.path)
            if _is_ledger(connection):
                return connection
            connection.close()
            return _made_anew(self.path)


def _made_anew(path: Path) -> sqlite3.Connection:
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    return _with_tables(_connect(path))


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=_BUSY_SECONDS)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _with_tables(connection: sqlite3.Connection) -> sqlite3.Connection:
    connection.executescript(_TABLES)
    connection.execute(f"PRAGMA user_version = {LEDGER_VERSION}")
    return connection


def _is_ledger(connection: sqlite3.Connection) -> bool:
    """Return whether this is a ledger of this version; a new, empty file is not."""
    try:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    except sqlite3.DatabaseError:
        return False
    return version == LEDGER_VERSION and {"trials", "comparisons"} <= tables


def _comparison_files(folder: Path) -> list[Comparison]:
    found: list[Comparison] = []
    for path in sorted((folder / "comparisons").glob("*.json")):
        with contextlib.suppress(OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            if path.stat().st_size <= _MAX_COMPARISON_BYTES:
                comparison: Any = msgspec.json.decode(path.read_bytes(), type=Comparison)
                found.append(comparison)
    return found


@contextlib.contextmanager
def _locked(path: Path) -> Generator[None]:
    """Let one process at a time look whether the ledger has to be made anew."""
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
