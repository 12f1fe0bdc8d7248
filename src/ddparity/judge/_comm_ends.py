"""Who died first and of what, who waits for whom, and who never came: the root before what follows from it."""

import math
from collections.abc import Mapping

from ddparity.trace._ring_format import Field, ProcessStatus
from ddparity.trace._rings import Call

from . import _causes
from ._comm_finding import finding, name_of, sites, told, waiting, where_now, who
from ._comm_match import Divergence, is_new, left_loop
from ._comm_run import CommRun, Error, Member, short
from ._run import listed
from ._verdict import Finding, Phase

_REDUCER_ERRORS = {
    "marked_twice": "ddp.marked_twice",
    "graph_changed": "ddp.graph_changed",
    "unused_parameters": "ddp.unused_parameters",
    "shapes_differ": "ddp.parameters_differ",
}
_UNLIKE = frozenset({"collective.operation", "collective.size", "collective.shape", "collective.dtype"})
_SAME_CALL = _UNLIKE | {"collective.layout", "collective.reduce_op", "collective.root"}
"""What is said of calls that belong together."""
_DEATHS = frozenset({"rank.killed", "rank.exited", "rank.raised", "rank.stopped"})
_ABORTED = -6
_STALE_SECONDS = 3.0
"""A process whose heartbeat is older than this while others went on was stopped, or its GIL was held."""


def reducer_errors(run: CommRun) -> list[Finding]:
    """Errors that the data-parallel wrapper raised itself, the earliest of each kind."""
    found: list[Finding] = []
    errors = [
        (error.time, rank, error)
        for rank, member in run.members.items()
        for error in member.errors
        if error.kind in _REDUCER_ERRORS
    ]
    for _, rank, error in sorted(errors, key=lambda each: each[0])[:1]:
        ranks = sorted(r for r, m in run.members.items() if any(e.kind == error.kind for e in m.errors))
        step = error.step - 1 if error.kind == "unused_parameters" else error.step
        names = list(error.parameters) or arrived_names(run, rank, error.kind, step)
        if error.kind in ("marked_twice", "graph_changed"):  # it stops at the first; the whole module is concerned
            names = _of_modules(names, run.members[rank].reduced)
        lacking = unequal_arrivals(run, step)
        apart = bool(lacking) and error.kind == "unused_parameters"
        names = names or sorted({name for held in lacking.values() for name in held})
        found.append(
            finding(
                "ddp.unused_on_some_ranks" if apart else _REDUCER_ERRORS[error.kind],
                name=names[0] if names else f"rank:{rank}",
                step=step,
                phase=Phase.COLLECTIVE if apart else (Phase.BACKWARD if step >= 0 else Phase.INIT),
                ranks=sorted(lacking) if apart else ranks,
                ranks_differ=apart or error.kind == "shapes_differ",
                evidence={"error": f"{error.type} at {short(error.site)}", "parameters": names[:8], "raised_on": ranks},
            )
        )
        found += [_named(found[0], name) for name in names[1:20]]
    return found


def _of_modules(names: list[str], reduced: list[str]) -> list[str]:
    """Return all reduced parameters of the modules that own these, in their order."""
    owners = {name.rpartition(".")[0] for name in names}
    return [name for name in reduced if name.rpartition(".")[0] in owners] or names


def _named(first: Finding, name: str) -> Finding:
    return Finding(
        layer=first.layer,
        step=first.step,
        phase=first.phase,
        name=name,
        site=first.site,
        ranks=first.ranks,
        ranks_differ=first.ranks_differ,
        cause=first.cause,
        next=first.next,
    )


def arrived_names(run: CommRun, rank: int, kind: str, step: int) -> list[str]:
    """Return the parameters that an error of the reducer is about, by which gradients arrived when."""
    seen = run.members[rank].arrivals()
    if kind == "unused_parameters":
        return [name for name, (last, _) in seen.items() if last < step]
    if kind == "marked_twice":
        return [name for name, (last, count) in seen.items() if last == step and count > 1]
    if kind == "graph_changed":
        new = [name for name, counted in run.members[rank].first_arrivals().items() if counted == step]
        return new or [name for name, (last, _) in seen.items() if last < step]
    return []


def unequal_arrivals(run: CommRun, step: int) -> dict[int, list[str]]:
    """Return, by rank, the parameters without a gradient in this step whose gradient arrived on another rank."""
    seen = {rank: member.arrivals() for rank, member in run.members.items()}
    lacking: dict[int, list[str]] = {}
    for rank, mine in seen.items():
        if all(last < step for last, _ in mine.values()):
            continue  # it had no backward in this step at all
        others = [theirs for other, theirs in seen.items() if other != rank]
        names = [
            name
            for name, (last, _) in mine.items()
            if last < step and any(theirs.get(name, (-1, 0))[0] >= step for theirs in others)
        ]
        if names:
            lacking[rank] = names
    return lacking


def own_deaths(run: CommRun) -> list[Finding]:
    """Ranks that ended by themselves and not because of another: killed, raised, left; the earliest first."""
    dead: list[tuple[float, int, str]] = []
    for rank, member in run.members.items():
        code = how_ended(run, member)
        if code in _DEATHS:
            error = member.error
            raised = error is not None and code == "rank.raised"
            time = error.time if error is not None and raised else member.ended or member.last_seen
            dead.append((time, rank, code))
    return [_death(run, run.members[rank], code) for _, rank, code in sorted(dead)]


def _death(run: CommRun, member: Member, code: str) -> Finding:
    others = [m for r, m in run.members.items() if r != member.rank]
    at = member.error.site if member.error is not None and code == "rank.raised" else member.position
    return finding(
        code,
        name=f"rank:{member.rank}",
        step=death_step(member),
        ranks=[member.rank],
        evidence={
            "died": member.describe(),
            "last_seen_at": short(at),
            "after_calls": len(member.ring.calls),
            "last_call": told(member.ring.calls[-1]) if member.ring.calls else "",
            "others": {f"rank {m.rank}": where_now(m) for m in others[:8]},
            "hosts": who(run, run.members),
        },
    )


def unanswering(run: CommRun, states: Mapping[int, str]) -> list[Finding]:
    """Say of ranks that live and do not answer whether they are stopped, or keep the GIL in native code.

    Args:
        run: The run as it is now.
        states: Rank -> what the kernel says of its process, for those that do not answer.
    """
    found = []
    for rank, state in sorted(states.items()):
        member = run.members[rank]
        others = [m for r, m in run.members.items() if r not in states]
        found.append(
            finding(
                "rank.stopped" if state == "stopped" else "rank.gil_held",
                name=f"rank:{rank}",
                step=death_step(member),
                ranks=[rank],
                evidence={
                    "pid": member.ring[Field.PID],
                    "process": state,
                    "last_seen_at": short(member.position),
                    "last_call": told(member.ring.calls[-1]) if member.ring.calls else "",
                    **{f"rank {m.rank}": where_now(m) for m in others[:8]},
                    "hosts": who(run, run.members),
                },
            )
        )
    return found


def how_ended(run: CommRun, member: Member) -> str:
    """Return the cause by which a rank ended by itself, or an empty text.

    SIGABRT is none here: it is the backend's own answer to calls that do not fit, and these tell the story.
    """
    if member.ring.status is not ProcessStatus.FINISHED and _stood_still(run, member):
        return "rank.stopped"
    if member.ring.status is ProcessStatus.EXITED:
        return "rank.exited"
    if member.ring.status is ProcessStatus.RAISED:
        return "rank.raised" if _is_own(member.error) and member.failed_start is None else ""
    if member.ring.status is ProcessStatus.FINISHED:
        return ""
    return "rank.killed" if member.killed and member.exit_code != _ABORTED else ""


def _is_own(error: Error | None) -> bool:
    return error is not None and not error.is_cascade and error.where != "init"


def _stood_still(run: CommRun, member: Member) -> bool:
    """Whether a rank's heartbeat stood still for long when others gave up by time-out: it was there, and did not run.

    It may have gone on later, when somebody woke it.
    """
    gave_up = [e.time for m in run.members.values() if m is not member for e in m.errors if e.kind == "timeout"]
    if not gave_up:
        return False
    ring = member.ring
    end = ring.wall(ring[Field.GAP_ENDED])
    gaps = [(member.last_seen, math.inf), (end - ring[Field.GAP_NS] / 1e9, end)]
    return any(begin + _STALE_SECONDS < min(gave_up) < end for begin, end in gaps)


def death_step(member: Member) -> int:
    """Return the training step in which a rank ended: the one that it was in, or would have begun."""
    last = member.ring.records[-1].step if member.ring.records else -1
    return max(last, member.ring[Field.STEP])


def absence(run: CommRun, found: Divergence) -> Finding:
    """Say who waits in which call, and where those are that did not make it."""
    waiters, absent = sorted(found.calls), found.absent
    call = found.calls[min(waiters, key=lambda rank: found.calls[rank].entered)]
    members = [run.members[rank] for rank in absent if rank in run.members]
    code, confidence = _why_absent(run, found, members)
    lacking = unequal_arrivals(run, call.step) if _is_reducer(call) else {}
    names = [name for rank in absent for name in lacking.get(rank, [])]
    if names:
        code = "ddp.unused_on_some_ranks"
    by_rank = code in _DEATHS
    name = names[0] if names else (f"rank:{absent[0]}" if by_rank else name_of(call))
    return finding(
        code,
        name=name,
        step=call.step,
        ranks=absent,
        confidence=confidence,
        evidence={
            "group": found.group.label,
            "call": found.seq,
            **{f"rank {listed([rank])}": waiting(run.members[rank], found.calls[rank]) for rank in waiters[:4]},
            **{f"rank {m.rank}": where_now(m, found.group) for m in members[:4]},
            "parameters": names[:8],
            "hosts": who(run, [*waiters, *absent]),
        },
    )


def _why_absent(run: CommRun, found: Divergence, members: list[Member]) -> tuple[str, str]:
    if not members:
        return "collective.missing", "likely"
    member = members[0]
    if not member.ring[Field.STARTED]:  # of a flight recorder's dump, which does not tell how its rank ended
        return "collective.missing", "likely"
    code = how_ended(run, member)
    if code:
        return code, "proved"
    gave_up = [e.time for m in run.members.values() if m is not member for e in m.errors if e.kind == "timeout"]
    lived = member.ended is None or any(time < member.ended for time in gave_up)
    if member.ring.status is ProcessStatus.FINISHED:
        return "collective.late" if lived else "collective.left", "proved"
    last = member.ring.calls[-1] if member.ring.calls else None
    if last is not None and last.group != found.group.label and not last.done and _is_in(member, last):
        return "collective.deadlock", "proved"
    if member.ring.status is ProcessStatus.RAISED or member.exit_code == _ABORTED:
        return "collective.missing", "likely"
    return "collective.late", "proved"


def _is_in(member: Member, call: Call) -> bool:
    """Whether a rank's main thread still stands where it made a call."""
    return member.position == call.site


def _is_reducer(call: Call) -> bool:
    return call.origin.startswith("autograd/graph.py")


def mismatch(run: CommRun, found: Divergence) -> Finding:
    """Say which calls met that do not fit."""
    calls = found.calls
    lacking: dict[int, list[str]] = {}
    for call in calls.values():
        if _is_reducer(call) and found.code in _UNLIKE:
            lacking = lacking or unequal_arrivals(run, call.step)
    lacking = {rank: names for rank, names in lacking.items() if rank in calls and not _is_reducer(calls[rank])}
    rank, left = _locus(found)
    call = calls[rank]
    if lacking:
        names = [name for held in lacking.values() for name in held]
        reducing = next(c for c in calls.values() if _is_reducer(c))
        return finding(
            "ddp.unused_on_some_ranks",
            name=names[0],
            step=reducing.step,
            ranks=sorted(lacking),
            evidence={
                "group": found.group.label,
                "call": found.seq,
                **sites(calls),
                "parameters": names[:8],
                "ends": {f"rank {r}": where_now(run.members[r]) for r in calls},
            },
        )
    extra = list[int]() if left else _extra(found)
    return finding(
        "collective.left_loop" if left else "collective.extra" if extra else found.code,
        name=name_of(call),
        step=call.step,
        ranks=_concerned(found),
        confidence=_causes.LIKELY if extra else _causes.PROVED,
        detail=f"It is rank {listed(extra)}." if extra else "",
        evidence={
            "group": found.group.label,
            "call": found.seq,
            **sites(calls),
            "steps": {f"rank {r}": c.step for r, c in calls.items()} if found.code == "collective.shifted" else {},
            "ends": {
                f"rank {r}": where_now(run.members[r]) for r in calls if run.members[r].error or run.members[r].killed
            },
            "hosts": who(run, calls),
        },
    )


def _concerned(found: Divergence) -> list[int]:
    """Return the ranks that a mismatch is about: those ahead in steps where calls are shifted, else all of them."""
    first = min(call.step for call in found.calls.values())
    shifted = [rank for rank, call in found.calls.items() if call.step > first]
    return sorted(shifted if found.code == "collective.shifted" else found.calls)


def _locus(found: Divergence) -> tuple[int, bool]:
    """Return the rank whose call has no partner, and whether another one has left the loop that it is in.

    A rank that still goes round a loop which another has left is alone with its call. Otherwise a call from a place
    that no rank called from before is the one that does not belong; else it is the call of the earliest step.
    """
    calls = found.calls
    if found.code == "collective.shifted":
        return min(calls, key=lambda rank: calls[rank].step), False
    for rank, call in calls.items():
        for other, theirs in calls.items():
            if rank != other and left_loop(theirs, call):
                return rank, True
    new = _from_new_places(found)
    if new:
        return new[0], False
    return min(calls, key=lambda rank: (calls[rank].step, -calls[rank].numel)), False


def _from_new_places(found: Divergence) -> list[int]:
    """Return the ranks whose call comes from a place that no rank called from before, where those of others do not."""
    new = [rank for rank, call in found.calls.items() if is_new(found.group, rank, call)]
    return new if len(new) < len(found.calls) else []


def _extra(found: Divergence) -> list[int]:
    """Return the ranks that make a call which the others do not, in place of one that all of them make."""
    new = _from_new_places(found)
    others = {call.site for rank, call in found.calls.items() if rank not in new}
    apart = all(found.calls[rank].site and found.calls[rank].site not in others for rank in new)
    return new if found.code in _SAME_CALL and apart else []
