"""Making a bundle: plan it, show what it would hold, write it, and look once more for what must not be in it."""

import zipfile
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ddparity._errors import UsageError
from ddparity.bundle._parts import SKETCHES, by_place, parts_of, why
from ddparity.bundle._scrub import Scrubber
from ddparity.bundle._veil import Veil
from ddparity.trace import TrialFacts, read_trial

VERSION = 1
HEAD = "bundle.json"
_DATE = (1980, 1, 1, 0, 0, 0)
"""Entries bear no time: the same trials in the same order make entries of the same size."""


class BundleHead(msgspec.Struct, kw_only=True):
    """``bundle.json``: what a bundle holds.

    Attributes:
        trials: Folders below ``trials/``.
        pairs: Control and candidate of each comparison, by folder.
    """

    version: int = VERSION
    trials: list[str]
    pairs: list[tuple[str, str]] = []


@dataclass(frozen=True)
class Entry:
    """One file of a bundle, and why it may leave the machine."""

    name: str
    content: bytes

    @property
    def why(self) -> str:
        """Why it is safe."""
        return why(self.name)


def plan_bundle(folders: list[Path]) -> list[Entry]:
    """Make the entries of a bundle of some trials, the controls they were recorded against included.

    Args:
        folders: Folders of trials, which stand beside each other.

    Raises:
        TraceError: If a file of a trial is missing or corrupt.
        UsageError: If something that must not leave the machine is still in an entry; nothing is written then.
    """
    trials = {trial.folder.name: trial for trial in map(read_trial, _with_controls(folders))}
    scrub, veil = Scrubber(trials.values()), Veil()
    entries = [
        Entry(name, content)
        for key, trial in trials.items()
        for name, content in parts_of(trial, f"trials/{key}", scrub, veil)
    ]
    entries.append(Entry(SKETCHES, by_place(veil.sketches())))
    controls = [key for key, trial in trials.items() if trial.facts.control]
    pairs = []
    for key, trial in trials.items():
        against = trial.facts.against if trial.facts.against in trials else next(iter(controls), None)
        if not trial.facts.control and against is not None and key not in _helpers(trials[against].facts):
            pairs.append((against, key))
    head = BundleHead(trials=list(trials), pairs=pairs)
    entries.insert(0, Entry(HEAD, msgspec.json.format(msgspec.json.encode(head), indent=1)))
    _look_again(entries, scrub)
    return entries


def _helpers(control: TrialFacts) -> set[str]:
    """Return the runs that measured a control's floors: they are no candidates."""
    return {name for name in (control.floors.float64, control.floors.moved) if name} if control.floors else set()


def _with_controls(folders: list[Path]) -> list[Path]:
    found: dict[str, Path] = {}
    for folder in folders:
        facts = read_trial(folder).facts
        beside = [facts.against] if facts.against else []
        if facts.floors is not None:
            beside += [name for name in (facts.floors.float64, facts.floors.moved) if name]
        for name in beside:
            if (folder.parent / name / "trial.json").is_file():
                found.setdefault(name, folder.parent / name)
        found.setdefault(folder.name, folder)
    return list(found.values())


def _look_again(entries: list[Entry], scrub: Scrubber) -> None:
    for entry in entries:
        for name in scrub.names:
            for encoding in ("utf-8", "utf-16-le", "utf-32-le"):
                if name.encode(encoding) in entry.content and not entry.name.endswith(SKETCHES):
                    raise UsageError(
                        f"{entry.name} still names {name!r}: nothing was written. Please report this; until then "
                        "leave that trial out."
                    )


def write_bundle(entries: list[Entry], path: Path) -> int:
    """Write a bundle; return its size in bytes.

    Raises:
        UsageError: If it cannot be written.
    """
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
            for entry in entries:
                info = zipfile.ZipInfo(entry.name, _DATE)
                info.compress_type = zipfile.ZIP_DEFLATED
                info.external_attr = 0o600 << 16
                archive.writestr(info, entry.content)
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise UsageError(f"{str(path)!r} cannot be written ({error.strerror}). Name another file with -o.") from error
    return path.stat().st_size
