"""Running a reproduction: what ``python repro.py`` does."""

import argparse
import contextlib
import importlib.util
import json
import os
import sys
import tempfile
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ddparity._errors import DdparityError, ExitCode, UsageError
from ddparity.judge import compare_trials
from ddparity.report import render_text
from ddparity.repro._case import PYTHON, VERSION, Case, Expected, first_of
from ddparity.repro._layout import ELSEWHERE
from ddparity.trace import TrialFacts, TrialStatus
from ddparity.trace._inputs import InputSpecs
from ddparity.trials import RecordSpec, Store, outcome, rank_folders, record, uninterrupted

STAND_INS = "stand_ins"
_TAIL = 400


def reproduce(case: Mapping[str, Any], sources: Mapping[str, str], arguments: Sequence[str] = ()) -> int:
    """Run a case's two commands on its sources and say whether the finding shows.

    Args:
        case: A ``Case`` as plain data.
        sources: Text of each file, by its place in the folder.
        arguments: Those of ``repro.py``.

    Returns:
        The exit code: 1 the finding shows, 0 it does not, 2 usage, 3 it cannot be told, 4 a command failed.
    """
    parser = argparse.ArgumentParser(prog="repro.py", description="Show a finding again, with inputs that are made up.")
    parser.add_argument("--keep", metavar="FOLDER", help="Leave sources and trials in this folder.")
    parser.add_argument("--timeout", metavar="SECONDS", type=float, default=300.0, help="End a run after this time.")
    parser.add_argument("--without", metavar="FILE", help="Treat the files listed there (JSON) as missing.")
    given = parser.parse_args(list(arguments))
    try:
        known = msgspec.convert(dict(case), Case)
        if known.version != VERSION:
            raise UsageError(f"This is a case of version {known.version}; this ddparity reads {VERSION}. Upgrade it.")
        _check_needs(known)
        hidden = json.loads(Path(given.without).read_text()) if given.without else []
        with _folder(given.keep) as folder:
            return _run(known, sources, folder, given.timeout, hidden, kept=given.keep is not None)
    except msgspec.ValidationError as error:
        print(f"error: CASE was changed or is of another version: {error}", file=sys.stderr)
        return ExitCode.USAGE
    except DdparityError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code


def _check_needs(case: Case) -> None:
    missing = [name for name in case.needs if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(f"{', '.join(missing)} is not installed here. Next: pip install {' '.join(missing)}")


@contextlib.contextmanager
def _folder(keep: str | None) -> Generator[Path]:
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="ddparity-repro-", ignore_cleanup_errors=True) as folder:
            yield Path(folder).resolve()
        return
    path = Path(keep).resolve()
    path.mkdir(parents=True, exist_ok=True)
    if any(path.iterdir()):
        raise UsageError(f"--keep {keep!r} is not empty. Name a new folder.")
    yield path


def _run(
    case: Case, sources: Mapping[str, str], folder: Path, timeout_s: float, hidden: list[str], *, kept: bool
) -> int:
    work = folder / "work"
    _write_sources(work, sources, [*case.control, *case.candidate])
    specs = folder / "inputs.json"
    inputs = msgspec.structs.replace(case.inputs, hidden=hidden)
    specs.write_bytes(msgspec.json.encode(inputs))
    _write_stand_ins(folder / STAND_INS, case.stand_ins)
    paths = [str(folder / STAND_INS), *(str(work / root) for root in case.roots)]
    store = Store(folder / "store")
    synthetic = str(specs) if case.is_made_up or hidden else None
    with contextlib.chdir(work), _environment(paths):
        print(f"1/2  the control, on one device: {' '.join(case.control)}", flush=True)
        control = _record(case, store, "control", case.control, synthetic, timeout_s)
        if not rank_folders(store.path(control.id)) or control.status is not TrialStatus.COMPLETED:
            print(f"cannot: the control does not run here: {outcome(control)}{_said(store, control)}")
            return ExitCode.COMMAND_FAILED
        print(f"2/2  the candidate: {' '.join(case.candidate)}", flush=True)
        candidate = _record(case, store, "candidate", case.candidate, synthetic, timeout_s)
        verdict = compare_trials(store.path(control.id), store.path(candidate.id))
    print(f"\n{render_text(verdict)}")
    print("The trials are in store/." if kept else "The trials are thrown away; --keep FOLDER leaves them.")
    found = first_of(verdict, case.expected.layer)
    return _told(case.expected, found, f"{outcome(candidate)}{_said(store, candidate)}", ended_well(candidate))


def ended_well(facts: TrialFacts) -> bool:
    """Tell whether a trial's command ended with exit code 0."""
    return facts.status is TrialStatus.COMPLETED


def _told(expected: Expected, found: Expected | None, ended: str, well: bool) -> int:
    if found is not None and expected.is_same(found):
        print(f"reproduced: {found}")
        return ExitCode.DEVIATES
    if found is None and not well:
        print(f"cannot: the candidate did not come so far as to show {expected}; it ended with {ended}")
        return ExitCode.INCONCLUSIVE
    shown = "nothing deviates there" if found is None else f"what shows first is {found}"
    print(f"not reproduced: {expected} does not show; {shown}")
    return ExitCode.PASS


def _record(
    case: Case, store: Store, name: str, command: list[str], synthetic: str | None, timeout_s: float
) -> TrialFacts:
    facts = record(
        RecordSpec(
            command=[sys.executable if word == PYTHON else word for word in command],
            store=store,
            name=name,
            control=name == "control",
            prove=False,
            floor=case.floor and name == "control",
            steps=case.steps,
            level=case.level,
            stop_after_steps=case.stop_after_steps,
            dtype=case.dtype,
            neutral_dropout=case.neutral_dropout,
            batch_dim=case.batch_dim,
            synthetic=synthetic,
            timeout_s=timeout_s,
            on_hang="stop",
            quiet=True,
        )
    )
    return uninterrupted(facts)


def _said(store: Store, facts: TrialFacts) -> str:
    """Return the last line of what a command that failed had to say."""
    path = store.path(facts.id) / "private" / "output.log"
    if ended_well(facts) or not path.is_file():
        return ""
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    errors = [line.strip() for line in lines if "Error" in line and not line.startswith(" ")]
    return f" ({errors[0][:_TAIL]})" if errors else ""


def _write_sources(work: Path, sources: Mapping[str, str], words: Sequence[str]) -> None:
    for name, text in sources.items():
        path = (work / name).resolve()
        if not path.is_relative_to(work.resolve()):
            raise UsageError(f"{name!r} does not stay in the folder of the reproduction; it was not made by ddparity.")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="")
    (work / ELSEWHERE / "paths").mkdir(parents=True, exist_ok=True)
    for word in words:
        value = word.rpartition("=")[2]
        if "/" in value and not os.path.isabs(value) and ".." not in value and not value.startswith("-"):
            with contextlib.suppress(OSError):
                (work / value).parent.mkdir(parents=True, exist_ok=True)


def _write_stand_ins(folder: Path, names: Sequence[str]) -> None:
    """Write packages that hold nothing but functions which the recorder replaces."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        module, _, function = name.rpartition(".")
        path = folder.joinpath(*module.split("."))
        path.mkdir(parents=True, exist_ok=True)
        for package in (path, *path.parents):
            if package == folder:
                break
            (package / "__init__.py").touch()
        with (path / "__init__.py").open("a", encoding="utf-8") as file:
            file.write(
                f"def {function}(*args, **kwargs):\n    raise RuntimeError({name!r} + ' is only a stand-in')\n\n\n"
            )


@contextlib.contextmanager
def _environment(paths: list[str]) -> Generator[None]:
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([*paths, before] if before else paths)
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


def checked_inputs(specs: InputSpecs) -> InputSpecs:
    """Return descriptions without what stays on this machine: files."""
    return msgspec.structs.replace(specs, files=[], hidden=[], problems=[])
