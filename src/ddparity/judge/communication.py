"""The communication layer: what every rank asked for, who is late, who is missing.

It looks at the candidate's own ranks; the control says only how fast a single device is.
"""

from pathlib import Path
from typing import Any

from ddparity._errors import TraceError
from ddparity.trace import TrialStatus
from ddparity.trace._ring_format import Field, ProcessStatus

from . import _comm_ends, _comm_launch
from ._comm_finding import finding, where_now
from ._comm_imbalance import imbalance
from ._comm_match import Divergence, compare_group
from ._comm_misuse import misuse
from ._comm_pace import straggler, throughput
from ._comm_run import CommRun, load_comm
from ._comm_small_groups import small_groups
from ._comm_transfers import transfers
from ._run import Run, load_run
from ._verdict import Finding, LayerVerdict, Status

_MAX_FINDINGS = 40


def judge(control: Run | None, candidate: Run) -> tuple[LayerVerdict, list[Finding]]:
    """Compare the calls of the candidate's ranks with each other, and say how each rank ended.

    A control is asked for one thing only: whether it raised the same error by itself.
    """
    try:
        run, alone = candidate.comm, None if control is None else control.comm
    except TraceError as error:
        return LayerVerdict(status=Status.INCONCLUSIVE, reason=str(error)), []
    if not any(member.init() for member in run.members.values()):
        return _without_groups(run, candidate), []
    checked, found = examine(run, status=candidate.trial.facts.status)
    found = [each for each in found if alone is None or not _as_alone(run, alone, each)]
    found = _with_records(run, candidate, found)
    if found:
        first = found[0]
        at = "" if first.step is None else f"step {first.step}, "
        reason = f"first deviation: {at}{first.phase.value}, {first.name}"
        return LayerVerdict(status=Status.DEVIATES, checked=checked, reason=reason), found[:_MAX_FINDINGS]
    if len(run.members) < 2 and not run.missing and not _disabled(run):
        reason = "one rank alone: nobody to compare its calls with"
        return LayerVerdict(status=Status.NOT_TESTED, checked=checked, reason=reason), []
    reason = _inconclusive(run, checked)
    if reason:
        return LayerVerdict(status=Status.INCONCLUSIVE, checked=checked, reason=reason), []
    return LayerVerdict(status=Status.PASS, checked=checked, reason=_passed(run, checked)), []


def _without_groups(run: CommRun, candidate: Run) -> LayerVerdict:
    """Say that nothing was asked of others: of one process, or of several that were launched together and trained."""
    trained = [rank for rank in run.members if any(s.complete for s in candidate.ranks.get(rank, {}).values())]
    if len(trained) < 2:
        return LayerVerdict(status=Status.NOT_TESTED, reason="no process group was made")
    reason = (
        f"{len(trained)} processes trained and made no process group: each trains by itself, unless something else "
        "than torch.distributed joins them; tell the script or its framework how many processes there are"
    )
    return LayerVerdict(status=Status.INCONCLUSIVE, reason=reason)


def _as_alone(run: CommRun, alone: CommRun, found: Finding) -> bool:
    """Whether a rank raised what the single device raised too, at the same place and step: the script's own error."""
    if found.cause.code != "rank.raised":
        return False
    known = {(e.type, e.stack, e.step) for member in alone.members.values() if (e := member.error) is not None}
    errors = [run.members[rank].error for rank in found.ranks or [] if rank in run.members]
    return bool(errors) and all(e is not None and (e.type, e.stack, e.step) in known for e in errors)


def examine(run: CommRun, *, status: TrialStatus) -> tuple[int, list[Finding]]:
    """Return how many calls were compared and what was found, the root first."""
    started = _comm_launch.launch(run)
    made = list(_comm_launch.new_groups(run))
    checked, divergences = _divergences(run)
    met = [each for each in divergences if each.code != "collective.missing"]
    alone = [each for each in divergences if each.code == "collective.missing"]
    ended_well = status is TrialStatus.COMPLETED
    timed = [(_time(run, each), [_comm_ends.mismatch(run, each)]) for each in met]
    reducer = _comm_ends.reducer_errors(run)
    if reducer:
        timed.append((_first_error(run), reducer))
    deaths = _comm_ends.own_deaths(run)
    if deaths and not reducer and status is not TrialStatus.INTERRUPTED:
        timed.append((_first_death(run, deaths[0]), deaths))
    timed.sort(key=lambda pair: pair[0])
    found = [*started, *made, *(each for _, findings in timed for each in findings)]
    waits = (
        [_comm_ends.absence(run, each) for each in alone]
        if not _disabled(run) and (not ended_well or not _excused(run))
        else []
    )
    found += waits
    _date_deaths(deaths, waits)
    found += transfers(run, ended_well=ended_well)
    if not started:
        found += misuse(run)
    if not found and not ended_well:
        found += _aborted(run)
    if not found:
        found += straggler(run)
    return checked, found


def examine_trial(folder: Path, *, status: TrialStatus) -> tuple[CommRun, list[Finding]]:
    """Examine a trial that has ended, without a control: its rings, and what its gradients tell of its groups.

    Raises:
        TraceError: If a ring is corrupt.
    """
    run = load_comm(folder)
    found = examine(run, status=status)[1]
    return run, found if _is_root(found) else _with_records(run, load_run(folder), found)


def _is_root(found: list[Finding]) -> bool:
    return bool(found) and not found[0].cause.code.startswith("pace.")


def _with_records(run: CommRun, candidate: Run, found: list[Finding]) -> list[Finding]:
    """Add what needs the records of samples and gradients, where the calls alone tell of no fault but the pace."""
    if _is_root(found):
        return found
    return [*small_groups(run, candidate), *(imbalance(run, candidate) or found)]


def _date_deaths(deaths: list[Finding], waits: list[Finding]) -> None:
    """Give a death the step in which it shows: that of the call in which the others wait for the rank."""
    for death in deaths:
        for wait in waits:
            if wait.ranks and death.ranks and death.ranks[0] in wait.ranks and wait.step is not None:
                death.step = wait.step
                break


def _divergences(run: CommRun) -> tuple[int, list[Divergence]]:
    """Compare every group; the divergences come in the order of time."""
    checked = 0
    found: list[Divergence] = []
    for group in run.groups.values():
        count, divergence = compare_group(group, run)
        checked += count
        if divergence is not None and divergence.calls:
            found.append(divergence)
    return checked, sorted(found, key=lambda each: _time(run, each))


def _time(run: CommRun, divergence: Divergence) -> float:
    return max(run.members[rank].ring.wall(call.entered) for rank, call in divergence.calls.items())


def _first_error(run: CommRun) -> float:
    return min(error.time for member in run.members.values() for error in member.errors)


def _first_death(run: CommRun, first: Finding) -> float:
    member = run.members[(first.ranks or [0])[0]]
    error = member.error
    return error.time if error is not None and first.cause.code == "rank.raised" else member.last_seen


def _excused(run: CommRun) -> bool:
    """Whether unequal numbers of calls say nothing: the recorder of some rank was switched off or its ring ran over."""
    return bool(_disabled(run)) or any(member.ring.num_lost for member in run.members.values())


def _disabled(run: CommRun) -> list[int]:
    return [rank for rank, member in run.members.items() if member.ring[Field.DISABLED]]


def _aborted(run: CommRun) -> list[Finding]:
    """A signal that no call explains; gloo is known to abort after the work was done, and that is none."""
    for rank, member in sorted(run.members.items()):
        if member.killed and member.ring.status is ProcessStatus.RUNNING:
            return [
                finding(
                    "rank.killed",
                    name=f"rank:{rank}",
                    step=_comm_ends.death_step(member),
                    ranks=[rank],
                    evidence={
                        "died": member.describe(),
                        "at": member.position,
                        "others": {f"rank {m.rank}": where_now(m) for m in run.members.values() if m.rank != rank},
                    },
                )
            ]
    return []


def _inconclusive(run: CommRun, checked: int) -> str:
    if run.missing:
        return f"no ring of rank {', '.join(map(str, run.missing[:8]))}"
    if _disabled(run):
        return f"the recorder of rank {', '.join(map(str, _disabled(run)))} switched itself off"
    if not checked:
        return "no collective call was recorded on two ranks of a group"
    return ""


def _passed(run: CommRun, checked: int) -> str:
    groups = sum(1 for group in run.groups.values() if any(group.calls.values()))
    reason = f"{checked} calls of {groups} group{'' if groups == 1 else 's'} agree over {len(run.members)} ranks"
    hosts = set(run.hosts().values())
    return f"{reason} on {len(hosts)} hosts" if len(hosts) > 1 else reason


def pace(control: Run, candidate: Run) -> dict[str, Any]:
    """Return where the time of the candidate's training steps goes, by rank; empty where it is not known."""
    try:
        probe = load_comm(candidate.trial.folder / "probe")
        return throughput(
            candidate.comm,
            control.comm,
            recorded=set(candidate.digested_steps) | set(control.digested_steps),
            probe=probe if probe.members else None,
        )
    except TraceError:
        return {}
