"""Climbing a ladder: rung by rung until one deviates.

What it has come to is written after every rung, for those who look (``_ladders``); the climb itself never reads that. A
rung of which the store has a completed trial - the same command, code and options - is not run again, so that an
interrupted climb goes on where it stopped.
"""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from ddparity._errors import DdparityError, TraceError
from ddparity.judge import Verdict, compare_trials, varied_between
from ddparity.trace import RankStatus, Trial, read_trial
from ddparity.trace._environment import allowed_environment
from ddparity.trace._schema import TrialFacts, TrialStatus
from ddparity.trials._facts import find_script, sha256_of
from ddparity.trials._ladders import (
    DEVIATES,
    FAILED,
    INCONCLUSIVE,
    INTERRUPTED,
    NOT_REACHED,
    PASS,
    RUNNING,
    SKIPPED,
    LadderResult,
    Ladders,
    RungResult,
)
from ddparity.trials._launch import outcome
from ddparity.trials._rungs import LadderSpec, Rung, rungs_of
from ddparity.trials._runner import record
from ddparity.trials._spec import RecordSpec
from ddparity.trials._store import Store, read_facts

_STOPS = (DEVIATES, FAILED, INTERRUPTED)
_HASH_LENGTH = 16


@dataclass
class _Climb:
    spec: LadderSpec
    say: Callable[[str], None]
    control: Path | None = None
    below: dict[tuple[int, int], Path] = field(default_factory=dict)
    """Number and processes of the rungs that have a trial -> its folder."""
    started: float = field(default_factory=time.time)


def climb(spec: LadderSpec, say: Callable[[str], None] = lambda _: None) -> LadderResult:
    """Run the rungs in order and stop at the first that deviates or fails.

    Args:
        spec: What to climb.
        say: Called with a line of progress before and after each rung.

    Raises:
        UsageError: The command or the batch cannot be used, or the code changed during the climb.
        CommandFailed: The command could not be started.
    """
    rungs = rungs_of(spec)
    state = _Climb(spec, say)
    with Ladders(spec.store).climbing(spec.name):
        results: list[RungResult] = []
        for rung in rungs:
            if rung.skipped:
                results.append(_result(rung, SKIPPED, rung.skipped))
            elif any(result.status in _STOPS for result in results) or (results and state.control is None):
                results.append(_result(rung, NOT_REACHED))
            else:
                _keep(state, rungs, [*results, _result(rung, RUNNING)])
                results.append(_run_or_tell(state, rungs, results, rung))
                _keep(state, rungs, results)
        answer = _answer(state, rungs, results)
        _write(state, answer)
    return answer


def _run_or_tell(state: _Climb, rungs: list[Rung], before: list[RungResult], rung: Rung) -> RungResult:
    """Run a rung; an error that ends the climb is written down before it does."""
    try:
        return _run_rung(state, rung)
    except DdparityError as error:
        _write(state, _answer(state, rungs, _whole(rungs, [*before, _result(rung, FAILED, str(error))])))
        raise


def _keep(state: _Climb, rungs: list[Rung], so_far: Sequence[RungResult]) -> None:
    """Write down what the climb has come to so far."""
    answer = _answer(state, rungs, _whole(rungs, so_far))
    answer.status = RUNNING
    _write(state, answer)


def _whole(rungs: list[Rung], so_far: Sequence[RungResult]) -> list[RungResult]:
    ahead = (_result(rung, SKIPPED if rung.skipped else NOT_REACHED, rung.skipped) for rung in rungs[len(so_far) :])
    return [*so_far, *ahead]


def _write(state: _Climb, answer: LadderResult) -> None:
    try:
        Ladders(state.spec.store).write(answer)
    except OSError as error:  # the trials are what counts; where they cannot be written either, recording says so
        state.say(f"the ladder's file cannot be written ({error.strerror}); the climb goes on")


def _result(rung: Rung, status: str, reason: str = "") -> RungResult:
    shape = {"nproc": rung.nproc, "accum": rung.accum, "dtype": rung.dtype, "command": rung.command}
    return RungResult(number=rung.number, label=rung.shown, title=rung.title, status=status, reason=reason, **shape)


def _run_rung(state: _Climb, rung: Rung) -> RungResult:
    state.say(f"rung {rung.number}: {rung.title} ...")
    started = time.monotonic()
    facts, reused = trial_of(state.spec, rung, None if state.control is None else state.control.name)
    folder = state.spec.store.path(facts.id)
    result = _result(rung, *(proved(state.spec.store, facts) if rung.number == 0 else (PASS, "")))
    result.trial, result.reused = facts.id, reused
    if rung.number == 0:
        state.control = folder if result.status == PASS else None
    else:
        _judge(state, rung, facts, folder, result)
    if rung.number in (0, 3, 4, 5):  # the ones that others are a change of
        state.below[rung.number, rung.nproc] = folder
    result.seconds = round(time.monotonic() - started, 2)
    again = "from the store" if reused else f"{result.seconds:.1f} s"
    state.say(f"rung {rung.number}: {result.status} ({again}){f': {result.reason}' if result.reason else ''}")
    return result


def trial_of(spec: LadderSpec, rung: Rung, control: str | None = None) -> tuple[TrialFacts, bool]:
    """Return a rung's trial, and whether the store had it already.

    Args:
        spec: What is climbed.
        rung: One of its rungs.
        control: Id of the control, where there is one: a trial recorded against another is not taken.
    """
    facts = None if spec.fresh else _reusable(spec, rung, control)
    return (record(_record_spec(spec, rung)), False) if facts is None else (facts, True)


def _record_spec(spec: LadderSpec, rung: Rung) -> RecordSpec:
    return RecordSpec(
        command=rung.command,
        store=spec.store,
        name=f"{spec.name}-{rung.label}",
        control=rung.number == 0,
        steps=spec.steps,
        stop_after_steps=spec.stop_after_steps,
        dtype="float64" if rung.promoted else None,
        timeout_s=spec.timeout_s,
        quiet=True,
    )


def proved(store: Store, facts: TrialFacts) -> tuple[str, str]:
    """Return what the control's proof comes to: it deviates from itself, or there is nothing to say so by."""
    if facts.status is TrialStatus.INTERRUPTED:
        return INTERRUPTED, "interrupted"
    if facts.status is not TrialStatus.COMPLETED:
        return FAILED, broken(store, facts)
    proof = facts.proof
    if proof is None or proof.status == "PROVED":
        return PASS, "two runs agree"
    if proof.status == "NOT_PROVED":
        return INTERRUPTED, proof.reason
    if proof.repeat is None:
        return INCONCLUSIVE, proof.reason
    repeat = read_facts(store.path(proof.repeat))
    return (DEVIATES, proof.reason) if repeat.status is TrialStatus.COMPLETED else (FAILED, proof.reason)


def broken(store: Store, facts: TrialFacts) -> str:
    log = store.path(facts.id) / "private" / "output.log"
    return f"the command failed ({outcome(facts)}); its output: {log}"


def _judge(state: _Climb, rung: Rung, facts: TrialFacts, folder: Path, result: RungResult) -> None:
    """Hold a rung against the control and enter what comes of it."""
    assert state.control is not None
    if facts.status is TrialStatus.INTERRUPTED:
        result.status, result.reason = INTERRUPTED, "interrupted"
        return
    fault = "" if worked(facts, folder) else broken(state.spec.store, facts)
    try:
        verdict = compare_trials(state.control, folder)
        result.variable, result.change = _change(read_trial(_rung_below(state, rung)), read_trial(folder))
    except TraceError as error:
        result.status, result.reason = (FAILED, fault) if fault else (INCONCLUSIVE, str(error))
        return
    result.status, result.reason = verdict.exit_status().value, _why(verdict)
    first = verdict.first()
    if first is not None:
        result.finding = msgspec.to_builtins(first, enc_hook=float)
    if fault and result.status != DEVIATES:
        result.status, result.reason = FAILED, fault
    elif fault:
        result.reason = f"{result.reason}; {fault}"


def _why(verdict: Verdict) -> str:
    """Return the reason of the layer that decides, and what is missing of the recording."""
    status = verdict.exit_status()
    reason = next((layer.reason for layer in verdict.layers.values() if layer.status is status), "")
    return "; ".join([reason, *verdict.partial_reasons[:2]])


def worked(facts: TrialFacts, folder: Path) -> bool:
    """Whether a command did its work: gloo may abort at interpreter exit after every rank has finished."""
    if facts.status is TrialStatus.COMPLETED:
        return True
    try:
        trial = read_trial(folder)
    except TraceError:
        return False
    finished = all(rank.facts.status is RankStatus.FINISHED for rank in trial.ranks)
    return facts.status is TrialStatus.FAILED and bool(trial.ranks) and finished and not trial.missing_ranks


def _rung_below(state: _Climb, rung: Rung) -> Path:
    """Return the trial that a rung differs from by one variable: the next smaller one under a launcher, or rung 0."""
    assert state.control is not None
    if rung.number < 4 or not rung.launched:
        return state.control
    smaller = [key for key in state.below if key[0] >= 3 and key[1] < rung.nproc + (rung.number == 6)]
    return state.below[max(smaller, key=lambda key: key[1])] if smaller else state.control


def _change(below: Trial, here: Trial) -> tuple[str | None, str]:
    """Return the names of the variables between two rungs, and the same with their values."""
    varied, names = varied_between(below, here)
    texts = []
    for name in names:
        values = {v.variable: f"{_shown(v.control)} -> {_shown(v.candidate)}" for v in varied if v.part_of == name}
        inside = ", ".join(f"{_option(fact)} {value}" for fact, value in values.items())
        texts.append(f"{_option(name)} {values[name]}" if name in values else f"{_option(name)} ({inside})")
    return ", ".join(names) or None, ", ".join(texts)


def _shown(value: object) -> str:
    return "not set" if value is None else str(value)


def _option(name: str) -> str:
    """Return an option of ``ddparity record`` as it is typed, and any other variable as it is called."""
    return f"--{name.removeprefix('record:').replace('_', '-')}" if name.startswith("record:") else name


def _answer(state: _Climb, rungs: list[Rung], results: list[RungResult]) -> LadderResult:
    order = (INTERRUPTED, DEVIATES, FAILED, INCONCLUSIVE, PASS)
    status = next((each for each in order if any(result.status == each for result in results)), INCONCLUSIVE)
    stopped = next((result for result in results if result.status in _STOPS), None)
    control = None if state.control is None else state.control.name
    answer = LadderResult(name=state.spec.name, status=status, control=control, rungs=results, started=state.started)
    answer.again, answer.cwd = state.spec.as_command(), str(Path.cwd())
    if stopped is not None:
        answer.stopped_at, answer.variable = stopped.number, stopped.variable
        answer.meaning = next(rung.meaning for rung in rungs if rung.shown == stopped.label)
        if stopped.status == DEVIATES and control is not None:
            answer.next = f"ddparity compare {control} {stopped.trial}"
        elif stopped.status == INTERRUPTED:
            answer.next = answer.again
    return answer


def _reusable(spec: LadderSpec, rung: Rung, control: str | None) -> TrialFacts | None:
    """Return the newest trial of exactly this rung, run by the same code with the same options, or None."""
    cwd = Path.cwd()
    script = find_script(rung.command, cwd)
    wanted = {
        "command": rung.command,
        "cwd": str(cwd),
        "control": rung.number == 0,
        "dtype": "float64" if rung.promoted else None,
        "steps": spec.steps,
        "stop_after_steps": spec.stop_after_steps,
        "script_sha256": None if script is None else sha256_of(script),
        "env": allowed_environment(os.environ),
        "status": TrialStatus.COMPLETED,
    }
    for facts in spec.store.trials():
        same = all(getattr(facts, name) == value for name, value in wanted.items())
        if same and facts.against in (None, control) and _is_proved(facts) and _same_sources(spec.store, facts):
            return facts
    return None


def _is_proved(facts: TrialFacts) -> bool:
    return not facts.control or (facts.proof is not None and facts.proof.status == "PROVED")


def _same_sources(store: Store, facts: TrialFacts) -> bool:
    """Whether every file of the user's code is still what it was when the trial ran."""
    try:
        ranks = read_trial(store.path(facts.id)).ranks
    except TraceError:
        return False
    sources = ranks[0].facts.sources if ranks else {}
    return bool(sources) and all(
        (sha256_of(Path(path)) or "")[:_HASH_LENGTH] == digest for path, digest in sources.items()
    )
