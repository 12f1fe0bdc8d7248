"""The store: one folder that holds the trials, each in a folder of its own.

::

    .ddparity/
      ledger.sqlite            an index, see _ledger.py
      trials/<id>/trial.json   what the store itself reads of a trial

The files are the truth. An id is ``<UTC time to the millisecond>-<name>-<four random hex digits>``: ids sort by time.
"""

import difflib
import os
import re
import secrets
import shlex
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

import msgspec

from ddparity._errors import TraceError, TrialNotFound, UsageError
from ddparity.trace._schema import SCHEMA_VERSION, TrialFacts

DEFAULT_STORE = ".ddparity"
HOME_VARIABLE = "DDPARITY_HOME"
MAX_NAME = 80
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*", re.ASCII)
_MAX_ID = 160
_MAX_FACTS_BYTES = 4 << 20


def check_name(name: str) -> str:
    """Return ``name`` if a trial may be called so; names become part of a folder's name, so they are kept tame.

    Raises:
        UsageError: The name is empty, too long or holds anything but letters, digits, ``.``, ``_`` and ``-``.
    """
    if len(name) <= MAX_NAME and _NAME.fullmatch(name):
        return name
    raise UsageError(
        f"{name[: MAX_NAME + 20]!r} cannot be the name of a trial. Allowed are letters, digits, '.', '_' and '-', "
        f"at most {MAX_NAME} of them, beginning with a letter, a digit or '_'. For example: --name ddp2"
    )


def new_trial_id(name: str) -> str:
    """Return a fresh id for a trial called ``name``; ids sort by the time at which they were made.

    Raises:
        UsageError: The name cannot be used, see ``check_name``.
    """
    now = datetime.now(UTC)
    stamp = f"{now:%Y%m%d-%H%M%S}{now.microsecond // 1000:03d}"
    return f"{stamp}-{check_name(name)}-{secrets.token_hex(2)}"


def read_facts(folder: Path) -> TrialFacts:
    """Read ``trial.json`` of a trial's folder; the folder's name is the trial's id, whatever the file says.

    Raises:
        TraceError: The file is missing, too large, not JSON, or not what this version writes.
    """
    path = folder / "trial.json"
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_FACTS_BYTES + 1)
    except OSError as error:
        raise TraceError(f"{path} cannot be read ({error.strerror}). Record the trial again.") from error
    if len(data) > _MAX_FACTS_BYTES:
        raise TraceError(f"{path} is larger than {_MAX_FACTS_BYTES} bytes: it was not written by ddparity.")
    try:
        facts = msgspec.json.decode(data, type=TrialFacts)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise TraceError(f"{path} is damaged ({error}). Record the trial again.") from error
    if facts.schema > SCHEMA_VERSION:
        raise TraceError(
            f"{path} has schema {facts.schema}, and this ddparity reads up to {SCHEMA_VERSION}. "
            "Upgrade: pip install -U ddparity"
        )
    facts.id = folder.name
    return facts


class Store:
    """One folder of trials.

    Args:
        root: The folder; it is made when the first trial is written.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()

    def __repr__(self) -> str:
        return f"Store({str(self.root)!r})"

    @classmethod
    def resolve(cls, explicit: str | None = None, env: Mapping[str, str] | None = None) -> Self:
        """Return the store to use: ``explicit`` (``--store``), else ``DDPARITY_HOME``, else ``.ddparity`` here.

        Args:
            explicit: What the user gave on the command line.
            env: The environment to look in; the process's own when None.

        Raises:
            UsageError: The path is there and is not a folder.
        """
        home = (os.environ if env is None else env).get(HOME_VARIABLE)
        root = Path(explicit or home or DEFAULT_STORE).expanduser()
        if root.exists() and not root.is_dir():
            source = "--store" if explicit else HOME_VARIABLE if home else "the working directory"
            raise UsageError(f"The store {str(root)!r} (from {source}) is not a folder. Name a folder with --store.")
        return cls(root)

    @property
    def option(self) -> str:
        """What a command needs at its end to mean this store from here; empty where that is the default."""
        default = self.root == Path(DEFAULT_STORE).resolve() or str(self.root) == os.environ.get(HOME_VARIABLE)
        return "" if default else f" --store {shlex.quote(str(self.root))}"

    @property
    def trials_dir(self) -> Path:
        """The folder of the trials' folders."""
        return self.root / "trials"

    def path(self, trial_id: str) -> Path:
        """Return the folder of the trial with exactly this id, whether it is there or not.

        Raises:
            TrialNotFound: ``trial_id`` cannot be an id at all (it would leave the store).
        """
        if len(trial_id) > _MAX_ID or not _NAME.fullmatch(trial_id):
            raise self._not_found(trial_id)
        return self.trials_dir / trial_id

    def create(self, name: str) -> tuple[str, Path]:
        """Make the folder of a new trial called ``name``.

        Returns:
            The new id and its folder.

        Raises:
            UsageError: The name cannot be used, or the store cannot be written.
        """
        trial_id = new_trial_id(name)
        folder = self.trials_dir / trial_id
        try:
            self._make_root()
            folder.mkdir(parents=True)
        except OSError as error:
            raise UsageError(
                f"The store {str(self.root)!r} cannot be written ({error.strerror}). "
                f"Name another folder with --store or {HOME_VARIABLE}."
            ) from error
        return trial_id, folder

    def ids(self) -> list[str]:
        """Return the ids of all trials, the newest first."""
        try:
            with os.scandir(self.trials_dir) as entries:
                names = [entry.name for entry in entries if entry.is_dir() and _NAME.fullmatch(entry.name)]
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted(names, reverse=True)

    def trials(self) -> Iterator[TrialFacts]:
        """Yield the facts of every trial that can be read, the newest first; the damaged ones are left out."""
        for trial_id in self.ids():
            try:
                yield read_facts(self.trials_dir / trial_id)
            except TraceError:
                continue

    def find(self, name_or_id: str) -> Path:
        """Return the folder of one trial.

        A trial is meant by its exact id, by its name (the newest of that name), or by the beginning of its id.

        Raises:
            TrialNotFound: None fits, or several ids begin so; the message lists the ones that are near.
        """
        ids = self.ids()
        if name_or_id in ids:
            return self.trials_dir / name_or_id
        for facts in self.trials():
            if facts.name == name_or_id:
                return self.path(facts.id)
        begun = [trial_id for trial_id in ids if name_or_id and trial_id.startswith(name_or_id)]
        if len(begun) == 1:
            return self.trials_dir / begun[0]
        raise self._not_found(name_or_id, begun)

    def _make_root(self) -> None:
        try:
            self.root.mkdir(parents=True)
        except FileExistsError:
            return
        # Only in a folder of our own making: recordings do not belong in the user's version control.
        (self.root / ".gitignore").write_text("*\n", encoding="utf-8")

    def _not_found(self, wanted: str, begun: list[str] | None = None) -> TrialNotFound:
        shown = repr(wanted[:_MAX_ID])
        if begun:
            text = f"{len(begun)} trials have an id that begins with {shown}: {', '.join(begun[:5])}."
            return TrialNotFound(f"{text} Give more of the id. See: {self._list_command()}")
        names = list(dict.fromkeys(facts.name for facts in self.trials()))
        if not names:
            return TrialNotFound(
                f"No trial {shown}: the store {str(self.root)!r} holds no trial. "
                "Record one (ddparity record --name NAME -- COMMAND) or name another store with --store."
            )
        near = difflib.get_close_matches(wanted, [*names, *self.ids()], n=5, cutoff=0.5)
        hint = f"Near it: {', '.join(near)}." if near else f"There are: {', '.join(names[:5])}."
        return TrialNotFound(f"No trial {shown} in the store {str(self.root)!r}. {hint} See: {self._list_command()}")

    def _list_command(self) -> str:
        return f"ddparity trials list{self.option}"
