"""Running a command as a trial: what ``ddparity record`` does around it.

Everything that ddparity says goes to standard error.
"""

import contextlib
import os
import re
import sys
import time
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import msgspec

from ddparity._errors import TraceError, UsageError
from ddparity.trace._atomic import write_atomically
from ddparity.trace._environment import allowed_environment
from ddparity.trace._inputs import InputSpecs
from ddparity.trace._schema import ControlProof, FloorTrials, RankFacts, RankStatus, TrialFacts, TrialStatus
from ddparity.trials._facts import find_script, git_facts, sha256_of
from ddparity.trials._launch import check_startable, launch, outcome
from ddparity.trials._ledger import Ledger
from ddparity.trials._live import rings_of
from ddparity.trials._probe import probe
from ddparity.trials._spec import RecordSpec
from ddparity.trials._store import MAX_NAME, Store

_RANK_FOLDER = re.compile(r"rank-([0-9]{5,9})")
_MAX_RANK_BYTES = 4 << 20


def record(spec: RecordSpec) -> TrialFacts:
    """Run the command as a trial; a control is run a second time and compared with itself.

    Returns:
        The facts of the trial as they stand in its ``trial.json``; a command that failed is a status, not an error.

    Raises:
        CommandFailed: The command could not be started.
        UsageError: The store cannot be written.
    """
    facts = _run(spec)
    if spec.probe and facts.status is TrialStatus.COMPLETED:
        _say(spec, "two processes send to each other for a moment, to measure what a link can do (--probe)")
        probe(spec.store.path(facts.id), facts)
        _save(spec.store, facts)
    if spec.control:
        facts.proof = _proof(spec, facts)
        _save(spec.store, facts)
    if spec.floor and facts.status is TrialStatus.COMPLETED:
        facts.floors = _floors(spec, facts)
        _save(spec.store, facts)
    return facts


def uninterrupted(facts: TrialFacts) -> TrialFacts:
    """Return the facts of a trial that no signal to ddparity ended: what is made of several runs ends with the first.

    Raises:
        KeyboardInterrupt: A signal ended it.
    """
    proof = facts.proof
    in_repeat = proof is not None and proof.status == "NOT_PROVED" and proof.repeat is not None
    if facts.status is TrialStatus.INTERRUPTED or in_repeat:
        raise KeyboardInterrupt
    return facts


def rank_folders(folder: Path) -> list[Path]:
    """Return the folders of the ranks that wrote something into this trial, in the order of ranks.

    A second process of the same rank (a restart) stands beside the first, in a folder that bears its pid; it is no
    other rank.
    """
    found = ((match, path) for path in folder.glob("rank-*") if (match := _RANK_FOLDER.fullmatch(path.name)))
    return [path for match, path in sorted(found, key=lambda pair: int(pair[0][1])) if path.is_dir()]


def _proof(spec: RecordSpec, first: TrialFacts) -> ControlProof:
    folder = spec.store.path(first.id)
    if not spec.prove:
        return ControlProof(status="NOT_PROVED", reason="--no-prove")
    if first.status is TrialStatus.INTERRUPTED:
        return ControlProof(status="NOT_PROVED", reason="the run was interrupted")
    if first.status is not TrialStatus.COMPLETED:
        return ControlProof(status="FAILED", reason=f"the control itself did not end well: {outcome(first)}")
    if not rank_folders(folder):
        return ControlProof(status="FAILED", reason="nothing was recorded, so there is nothing to compare")
    _say(spec, "the control runs a second time, to see whether it repeats itself (--no-prove skips this)")
    repeat = _run(replace(spec, control=False, floor=False, bank=False, name=f"{spec.name[: MAX_NAME - 7]}.repeat"))
    if repeat.status is TrialStatus.INTERRUPTED:
        return ControlProof(status="NOT_PROVED", reason="the second run was interrupted", repeat=repeat.id)
    if repeat.status is not TrialStatus.COMPLETED:
        reason = f"the second run did not end well: {outcome(repeat)}"
        return ControlProof(status="FAILED", reason=reason, repeat=repeat.id)
    return _judged(folder, spec.store.path(repeat.id))


def _floors(spec: RecordSpec, facts: TrialFacts) -> FloorTrials:
    """Run the control twice more, in float64 and with its inputs moved: what rounding makes of it."""
    runs = FloorTrials()
    again = replace(spec, control=False, floor=False, bank=False)
    for kind, text, altered in (
        ("float64", "in float64", replace(again, dtype="float64")),
        ("moved", "with its inputs moved by one unit in the last place", replace(again, perturb=True)),
    ):
        if spec.dtype == "float64" and kind == "float64":
            continue
        _say(spec, f"the control runs once more, {text}, to measure its noise floor")
        trial = _run(replace(altered, name=f"{spec.name[: MAX_NAME - 8]}.{kind}"))
        if trial.status is TrialStatus.COMPLETED:
            setattr(runs, kind, trial.id)
        else:
            facts.notes.append(f"no floor from the run {text}: it did not end well ({outcome(trial)})")
    return runs


def _judged(first: Path, repeat: Path) -> ControlProof:
    from ddparity.judge import prove_control  # the judge brings numpy and pyarrow; a plain record needs neither

    try:
        return prove_control(first, repeat)
    except TraceError as error:
        return ControlProof(status="FAILED", reason=str(error), repeat=repeat.name)


def _run(spec: RecordSpec) -> TrialFacts:
    """Run the command once as a trial, from ``RUNNING`` to its end."""
    check_startable(spec.command)
    pinned = _banked_control(spec) if spec.pinned else None
    trial_id, folder = spec.store.create(spec.name)
    facts = _facts_before(spec, trial_id)
    facts.pinned = pinned
    _save(spec.store, facts)
    try:
        launch(spec, facts, folder)
    except BaseException:
        facts.status = TrialStatus.FAILED if facts.status is TrialStatus.RUNNING else facts.status
        raise
    finally:
        facts.ended = time.time()
        facts.notes += _notes_after(facts, folder)
        _save(spec.store, facts)
    return facts


def _facts_before(spec: RecordSpec, trial_id: str) -> TrialFacts:
    cwd = Path.cwd()
    script = find_script(spec.command, cwd)
    return TrialFacts(
        id=trial_id,
        name=spec.name,
        control=spec.control,
        command=spec.command,
        cwd=str(cwd),
        started=time.time(),
        steps=spec.steps,
        level=spec.level,
        stop_after_steps=spec.stop_after_steps,
        ddparity=metadata.version("ddparity"),
        script=None if script is None else str(script),
        script_sha256=None if script is None else sha256_of(script),
        git=git_facts(cwd if script is None else script.parent),
        env=allowed_environment(os.environ),
        dtype=spec.dtype,
        neutral_dropout=spec.neutral_dropout,
        batch_dim=spec.batch_dim,
        synthetic=_makes_batches(spec),
        against=None if spec.control or script is None else _newest_control(spec.store, str(script)),
    )


def _makes_batches(spec: RecordSpec) -> bool:
    if spec.synthetic is None:
        return False
    return bool(msgspec.json.decode(Path(spec.synthetic).read_bytes(), type=InputSpecs).streams)


def _banked_control(spec: RecordSpec) -> str:
    """Return the id of the control of this script whose batches are banked.

    Raises:
        UsageError: There is none.
    """
    script = find_script(spec.command, Path.cwd())
    control = None if script is None else _newest_control(spec.store, str(script))
    if control is None or not (spec.store.path(control) / "private" / "bank").is_dir():
        raise UsageError(
            "--pinned hands out the batches of a control, and the newest control of this script has none banked. "
            "Record one first: ddparity record --control --bank --name single -- COMMAND on a single device"
        )
    return control


def _newest_control(store: Store, script: str) -> str | None:
    """Return the id of the newest control of the same script: what a candidate will most likely be held against."""
    controls = (f for f in store.trials() if f.control and f.status is TrialStatus.COMPLETED and f.script == script)
    return next((facts.id for facts in controls), None)


def _notes_after(facts: TrialFacts, folder: Path) -> list[str]:
    if facts.exit_code is None:  # it never started
        return []
    ranks = rank_folders(folder)
    if not ranks and rings_of(folder):
        return ["no training step was recorded; what the ranks asked of each other was"]
    if not ranks:
        return [
            "nothing was recorded: no process of the command imported torch, or the recorder was kept out of it. "
            "Try: ddparity doctor"
        ]
    if facts.status is TrialStatus.FAILED and all(_has_finished(path) for path in ranks):
        # gloo is known to abort at interpreter exit after all the work was done
        return [f"the command ended with {outcome(facts)} after every recorded rank had finished its work"]
    return []


def _has_finished(rank_folder: Path) -> bool:
    path = rank_folder / "rank.json"
    try:
        if path.stat().st_size > _MAX_RANK_BYTES:
            return False
        return msgspec.json.decode(path.read_bytes(), type=RankFacts).status is RankStatus.FINISHED
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return False


def _save(store: Store, facts: TrialFacts) -> None:
    write_atomically(store.path(facts.id) / "trial.json", msgspec.json.format(msgspec.json.encode(facts), indent=2))
    with contextlib.suppress(Exception), Ledger(store) as ledger:  # only an index: the next opening makes up for it
        ledger.put_trial(facts)


def _say(spec: RecordSpec, text: str) -> None:
    if not spec.quiet:
        print(f"ddparity: {text}", file=sys.stderr, flush=True)
