"""Faults that are injected into a real launch: do the others end in time, is the cause named, is nothing left?"""

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddparity._errors import TraceError
from ddparity.judge.communication import examine_trial
from ddparity.preflight._ground import Ground
from ddparity.preflight._rows import DEVIATES, INCONCLUSIVE, NOT_TESTED, PASS, Row
from ddparity.trace._schema import TrialFacts, TrialStatus
from ddparity.trials._launch import outcome

_SLACK_SECONDS = 10.0
"""How much later than the time-out the other ranks may end."""
_LAUNCHER_SECONDS = 75.0
"""What a launcher may need besides: torchrun waits 30 s before it kills a rank that does not answer."""
_SHARED = Path("/dev/shm")
_MAX_STEP = 5


@dataclass(frozen=True)
class Drill:
    """One fault.

    Attributes:
        how: As ``RecordSpec.interrupt_how``.
        causes: Codes of the causes that name it rightly.
        waits: Whether the others only learn of it by their time-out.
    """

    how: str
    causes: tuple[str, ...]
    waits: bool = False


_EXIT = Drill("exit", ("rank.raised", "rank.exited", "collective.left"))
_KILL = Drill("kill", ("rank.killed",))
_STOP = Drill("stop", ("rank.stopped",), waits=True)
_STALL = Drill("stall", ("collective.late", "collective.missing"), waits=True)


def leaves(ground: Ground, row: Row) -> None:
    """One rank ends by an error of its own."""
    _inject(ground, row, _EXIT)


def killed(ground: Ground, row: Row) -> None:
    """One rank is killed, as by the kernel when memory runs out."""
    _inject(ground, row, _KILL)


def stopped(ground: Ground, row: Row) -> None:
    """One rank stands still and lives."""
    _inject(ground, row, _STOP)


def stalled(ground: Ground, row: Row) -> None:
    """One rank waits for its data for good."""
    _inject(ground, row, _STALL)


def _inject(ground: Ground, row: Row, drill: Drill) -> None:
    spec = ground.spec
    victim = spec.nproc - 1
    limit = spec.drill_timeout_s
    before = _shared_memory()
    started = time.time()
    facts = ground.run(
        f"drill-{row.name}",
        spec.target.command,
        interrupt_at=min(_MAX_STEP, spec.at_step),
        interrupt_rank=victim,
        interrupt_how=drill.how,
        group_timeout_s=limit,
        hang_after_s=max(limit / 2, 1.0),
        timeout_s=min(spec.timeout_s, limit + _SLACK_SECONDS + _LAUNCHER_SECONDS + 60.0),
    )
    row.trials = [facts.id]
    try:
        run, found = examine_trial(ground.folder(facts), status=facts.status)
    except TraceError as error:
        row.status, row.evidence = INCONCLUSIVE, str(error)
        return
    at = _injected_at(ground, facts, victim, run)
    if at is None:
        row.status = NOT_TESTED
        row.evidence = f"no training step came to the fault ({outcome(facts)}); {ground.log(facts)}"
        return
    others = {rank: (m.ended or m.last_seen) - at for rank, m in run.members.items() if rank != victim}
    slowest = max(others.values(), default=facts.ended - at if facts.ended else 0.0)
    allowed = (limit if drill.waits else 0.0) + _SLACK_SECONDS
    root = found[0] if found else None
    named = root is not None and root.cause.code in drill.causes and victim in (root.ranks or [victim])
    left = _left_over(facts)
    shared = sorted(_shared_memory() - before)
    checks = {
        f"the other ranks end within {allowed:.0f} s": slowest <= allowed and facts.status is not TrialStatus.TIMED_OUT,
        "the exit code is not 0": facts.exit_code not in (0, None),
        f"rank {victim} is named first": named,
        "no process is left": not left,
        "no shared memory is left": not shared,
    }
    wrong = [what for what, holds in checks.items() if not holds]
    row.status = DEVIATES if wrong else PASS
    cause = "nothing" if root is None else f"{root.cause.code} ({root.name})"
    row.numbers = {
        "rank": victim,
        "others_ended_s": round(slowest, 2),
        "exit_code": facts.exit_code,
        "cause": cause,
        "processes_left": left,
        "shared_memory_left": shared,
        "seconds": round((facts.ended or time.time()) - started, 1),
    }
    told = f"the others ended after {slowest:.1f} s, {outcome(facts)}, named: {cause}"
    row.evidence = told if not wrong else f"not so: {'; '.join(wrong)} ({told}{_also(left, shared)})"
    if wrong:
        row.next = f"ddparity hang {facts.name}"


def _injected_at(ground: Ground, facts: TrialFacts, victim: int, run: Any) -> float | None:
    """Return when the fault came: when the victim had finished its last step; None if it never came that far."""
    member = run.members.get(victim)
    rank = next((each for each in ground.trial(facts).ranks if each.facts.rank == victim), None)
    if member is None or rank is None:
        return None
    steps = [event.time_ns / 1e9 for event in rank.events if event.kind == "step"]
    return steps[-1] if len(steps) >= min(_MAX_STEP, ground.spec.at_step) else None


def _left_over(facts: TrialFacts) -> list[str]:
    return [note for note in facts.notes if "outlived it" in note]


def _shared_memory() -> set[str]:
    """Return the names of this user's shared memory that torch makes."""
    if not _SHARED.is_dir():
        return set()
    mine = os.getuid()
    found = set()
    for entry in _SHARED.iterdir():
        try:
            if entry.name.startswith(("torch_", "psm_", "gloo")) and entry.stat().st_uid == mine:
                found.add(entry.name)
        except FileNotFoundError:  # gone in the meantime
            continue
    return found


def _also(left: list[str], shared: list[str]) -> str:
    told = [*left, *([f"in /dev/shm: {', '.join(shared[:4])}"] if shared else [])]
    return f"; {'; '.join(told)}" if told else ""
