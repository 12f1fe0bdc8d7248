"""Checkpoints: does a run that was killed come back, and what happens with one that is cut short or never fits?"""

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Generator
from pathlib import Path

from ddparity._errors import CommandFailed
from ddparity.digest import Digest, same
from ddparity.preflight._ground import Ground
from ddparity.preflight._rows import DEVIATES, INCONCLUSIVE, NOT_TESTED, PASS, Row
from ddparity.trace import Site
from ddparity.trace._schema import TrialFacts, TrialStatus
from ddparity.trials._launch import CHECKPOINTS, outcome
from ddparity.trials._recover import RUN, RecoverSpec, recover

_NO_PLACE = "the command does not say where it saves: put {checkpoints} there, as in: --save {checkpoints}"
_SAME_SAVE_SECONDS = 2.0
_MIN_DISK = 64 << 10


def resume(ground: Ground, row: Row) -> None:
    """Kill a rank after a checkpoint, start again, and hold the rest against a run without an interruption."""
    spec = ground.spec
    if not spec.saves:
        row.status, row.evidence = NOT_TESTED, _NO_PLACE
        return
    scratch = Path(tempfile.mkdtemp(prefix="checkpoints-", dir=_scratch(ground)))
    for run in ("parted", "whole"):
        (scratch / run).mkdir()
    command = [word.replace(CHECKPOINTS, str(scratch / RUN)) for word in spec.target.command]
    try:
        found = recover(
            RecoverSpec(
                command=command,
                store=spec.store,
                name=f"{spec.name}-resume",
                at_step=spec.at_step,
                kill=spec.nproc - 1,
                timeout_s=spec.timeout_s,
                quiet=True,
            )
        )
    except CommandFailed as error:
        row.status, row.evidence = DEVIATES, str(error)
        return
    finally:
        if _size(scratch / "parted"):
            ground.saved = scratch / "parted"
    row.trials = [found.parted, found.resumed, found.whole]
    if ground.saved is None:
        row.status = NOT_TESTED
        row.evidence = f"nothing was saved in the first {spec.at_step} steps: give a later --at-step"
        return
    answer = found.answer
    row.status = {"PASS": PASS, "DEVIATES": DEVIATES}.get(answer.status.value, INCONCLUSIVE)
    row.evidence = "; ".join([answer.reason, *found.notes])
    row.numbers = {"at_step": spec.at_step, "bytes": _size(ground.saved)}
    if answer.findings:
        first = answer.findings[0]
        row.evidence = f"{answer.reason}: {first.cause.text} [{first.cause.code}]"
    if row.status != PASS:
        row.next = f"ddparity recover --at-step {spec.at_step} -- COMMAND with {{run}} in the path it saves to"


def truncated(ground: Ground, row: Row) -> None:
    """Cut the newest checkpoint in half and start: it must be refused, or an older one be taken."""
    assert ground.saved is not None
    folder = Path(tempfile.mkdtemp(prefix="truncated-", dir=_scratch(ground)))
    shutil.copytree(ground.saved, folder, dirs_exist_ok=True)
    damaged = _cut_short(folder)
    facts = _start(ground, "truncated", folder)
    row.trials = [facts.id]
    row.numbers = {"damaged": [path.name for path in damaged], "exit_code": facts.exit_code}
    what = ", ".join(path.name for path in damaged)
    if facts.status is TrialStatus.TIMED_OUT:
        row.status, row.evidence = DEVIATES, f"with {what} cut in half the run hangs"
    elif facts.status is not TrialStatus.COMPLETED:
        row.status, row.evidence = PASS, f"with {what} cut in half the run refuses to start ({outcome(facts)})"
    elif _began_anew(ground, facts):
        row.status, row.evidence = DEVIATES, f"with {what} cut in half the run begins anew, and says nothing"
        row.next = "raise where a checkpoint cannot be read; ddparity checkpoint seal/verify find it before it is read"
    else:
        row.status, row.evidence = PASS, f"with {what} cut in half the run takes an older checkpoint"


def full_disk(ground: Ground, row: Row) -> None:
    """Give the checkpoints too little room, then room again: the failure must be told, and nothing half be read."""
    assert ground.saved is not None
    room = max(_largest_file(ground.saved) // 2, _MIN_DISK // 4)
    with _small_disk(ground, room) as disk:
        if disk is None:
            row.status = NOT_TESTED
            row.evidence = "a file system of fixed size cannot be mounted here (it takes root)"
            return
        facts = _start(ground, "full", disk, steps=ground.spec.at_step)
        rest = Path(tempfile.mkdtemp(prefix="rest-", dir=_scratch(ground)))
        shutil.copytree(disk, rest, dirs_exist_ok=True)
    row.trials = [facts.id]
    row.numbers = {"room": room, "exit_code": facts.exit_code}
    if facts.status is TrialStatus.TIMED_OUT:
        row.status, row.evidence = DEVIATES, f"with {room} bytes of room the run hangs"
        return
    if facts.status is TrialStatus.COMPLETED:
        row.status = DEVIATES
        row.evidence = f"with {room} bytes of room the run ends well: nobody learns that nothing was saved"
        row.next = "let the error of the write end the run, or retry and then end it"
        return
    again = _start(ground, "full-again", rest)
    row.trials.append(again.id)
    told = f"with {room} bytes of room the run ends ({outcome(facts)})"
    if again.status is TrialStatus.COMPLETED and not _began_anew(ground, again):
        row.status, row.evidence = (
            DEVIATES,
            f"{told}, and what it had written of the checkpoint is read as if it were whole",
        )
    else:
        after = "refuses what was left" if again.status is not TrialStatus.COMPLETED else "begins anew"
        row.status, row.evidence = PASS, f"{told}; with room again it {after}"


def _start(ground: Ground, kind: str, folder: Path, *, steps: int = 1) -> TrialFacts:
    command = [word.replace(CHECKPOINTS, str(folder)) for word in ground.spec.target.command]
    limit = ground.spec.drill_timeout_s
    return ground.run(kind, command, stop_after_steps=steps, group_timeout_s=limit)


def _began_anew(ground: Ground, facts: TrialFacts) -> bool:
    """Whether the first parameters of a run are those that every run begins with."""
    first, fresh = (_initial(ground, each) for each in (facts, ground.rehearsal))
    shared = [name for name in first if name in fresh]
    return bool(shared) and all(same(first[name], fresh[name]) for name in shared)


def _initial(ground: Ground, facts: TrialFacts) -> dict[str, Digest]:
    ranks = ground.trial(facts).ranks
    rows = [row for row in ranks[0].digests if row.site.site == Site.PARAMETER and row.step == 0] if ranks else []
    return {row.site.name: row.digest for row in reversed(rows)}


def _cut_short(folder: Path) -> list[Path]:
    """Cut the largest file of the newest save in half."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.stat().st_size > 1]
    newest = max(path.stat().st_mtime for path in files)
    last = [path for path in files if newest - path.stat().st_mtime <= _SAME_SAVE_SECONDS]
    largest = max(last, key=lambda path: path.stat().st_size)
    os.truncate(largest, largest.stat().st_size // 2)
    return [largest]


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _largest_file(folder: Path) -> int:
    return max(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _scratch(ground: Ground) -> Path:
    """Return a folder beside the trials: checkpoints are never a part of one, and are removed at the end."""
    folder = ground.spec.store.root / "preflight"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def clear_up(ground: Ground) -> None:
    """Remove the checkpoints that the review has made."""
    shutil.rmtree(ground.spec.store.root / "preflight", ignore_errors=True)


@contextlib.contextmanager
def _small_disk(ground: Ground, room: int) -> Generator[Path | None]:
    """Yield a file system of ``room`` bytes, or None where none can be mounted."""
    folder = Path(tempfile.mkdtemp(prefix="full-", dir=_scratch(ground)))
    mounted = _mount("-t", "tmpfs", "-o", f"size={room},mode=0700", "tmpfs", str(folder))
    try:
        yield folder if mounted else None
    finally:
        if mounted:
            subprocess.run(["umount", str(folder)], check=False, capture_output=True, timeout=30)
        folder.rmdir()


def _mount(*arguments: str) -> bool:
    if os.geteuid() != 0 or shutil.which("mount") is None:
        return False
    return subprocess.run(["mount", *arguments], check=False, capture_output=True, timeout=30).returncode == 0
