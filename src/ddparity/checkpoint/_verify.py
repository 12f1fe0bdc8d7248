"""Holding a checkpoint against its seal: whole, mixed of two saves, rotten, or not sealed."""

import difflib
from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum
from pathlib import Path

import msgspec

from ddparity.checkpoint._seal import Seal, digest_file, files_of, name_of, read_seal

_JOBS = 4
_MAX_NAMED = 5


class Condition(StrEnum):
    """What became of a checkpoint since it was sealed."""

    INTACT = "INTACT"
    DAMAGED = "DAMAGED"
    NOT_SEALED = "NOT_SEALED"


class Fault(msgspec.Struct, kw_only=True):
    """What is wrong with one file: ``missing``, ``changed``, ``truncated``, ``rewritten`` or ``added``."""

    file: str
    what: str


class Report(msgspec.Struct, kw_only=True):
    """What verifying a checkpoint came to.

    Attributes:
        condition: INTACT, DAMAGED or NOT_SEALED.
        text: The answer in words, with what to do.
        save_id: Of the seal.
        step: Of the seal.
        checked: Number of files whose content was digested.
        faults: What is wrong, file by file.
    """

    condition: Condition
    text: str
    save_id: str | None = None
    step: int | None = None
    checked: int = 0
    faults: list[Fault] = []


def verify(checkpoint: Path) -> Report:
    """Digest a checkpoint's files and hold them against its seal.

    Raises:
        CheckpointDamaged: The seal, or a file, cannot be read.
    """
    sealed = read_seal(checkpoint)
    if sealed is None:
        return Report(condition=Condition.NOT_SEALED, text=_not_sealed(checkpoint))
    there = {name_of(checkpoint, path): path for path in files_of(checkpoint)} if checkpoint.exists() else {}
    common = sorted(there.keys() & sealed.files.keys())
    with ThreadPoolExecutor(max_workers=_JOBS) as pool:
        faults = list(pool.map(lambda name: _fault(sealed, name, there[name]), common))
    found = [fault for fault in faults if fault is not None]
    found += [Fault(file=name, what="missing") for name in sorted(sealed.files.keys() - there.keys())]
    added = [Fault(file=name, what="added") for name in sorted(there.keys() - sealed.files.keys())]
    return Report(
        condition=_condition(found, added),
        text=_text(sealed, len(common), found, added),
        save_id=sealed.save_id,
        step=sealed.step,
        checked=len(common),
        faults=found + added,
    )


def _fault(sealed: Seal, name: str, path: Path) -> Fault | None:
    wanted, now = sealed.files[name], digest_file(path)
    if now == wanted:
        return None
    if path.stat().st_mtime > sealed.sealed:
        return Fault(file=name, what="rewritten")
    return Fault(file=name, what="truncated" if now.size < wanted.size else "changed")


def _condition(found: list[Fault], added: list[Fault]) -> Condition:
    if found:
        return Condition.DAMAGED
    return Condition.NOT_SEALED if added else Condition.INTACT


def _text(sealed: Seal, checked: int, found: list[Fault], added: list[Fault]) -> str:
    save = f"save {sealed.save_id}" + ("" if sealed.step is None else f" of step {sealed.step}")
    if not found and not added:
        return f"all {checked} files are those of {save}"
    if not found:
        return f"{_named(added)}: added after {save} was sealed. Seal the checkpoint anew, if its save has finished."
    rewritten = [fault for fault in found if fault.what == "rewritten"]
    whole = len(sealed.files) - len(found)
    if rewritten and whole:
        return (
            f"mixed of two saves: {whole} of {len(sealed.files)} files are those of {save}, and {_named(rewritten)} "
            "was written later. A save into this directory did not finish. Resume from an older checkpoint."
        )
    if rewritten:
        return f"written anew after {save} was sealed, and not sealed again. Resume from a sealed checkpoint."
    return (
        f"{_named(found)}: no longer what {save} wrote, without having been written again. The storage, or a copy, "
        "has damaged it. Resume from an older checkpoint, or fetch this one again."
    )


def _named(faults: list[Fault]) -> str:
    names = ", ".join(f"{fault.file} ({fault.what})" for fault in faults[:_MAX_NAMED])
    return names if len(faults) <= _MAX_NAMED else f"{names} and {len(faults) - _MAX_NAMED} more"


def _not_sealed(checkpoint: Path) -> str:
    if not checkpoint.exists():
        parent = checkpoint.parent
        others = [path.name for path in parent.iterdir()] if parent.is_dir() else []
        near = difflib.get_close_matches(checkpoint.name, others, n=3)
        hint = f" Near it: {', '.join(near)}." if near else ""
        return f"{checkpoint}: no such checkpoint.{hint}"
    return (
        "not sealed: nothing says which files belong to one save. Seal it when it is saved: "
        f"ddparity checkpoint seal {checkpoint}, or ddparity.seal_checkpoint(path) in the script"
    )
