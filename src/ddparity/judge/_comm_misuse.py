"""Calls that met and were used wrongly: read too early, written over, never waited for, given what gloo cannot read."""

from collections.abc import Iterator

from ddparity.trace._ring_format import CallFlag, Kind, ProcessStatus
from ddparity.trace._rings import Call

from ._causes import LIKELY
from ._comm_finding import finding, name_of, told
from ._comm_match import gaps
from ._comm_run import CommRun, Member
from ._verdict import Finding

_LOW = frozenset({"float16", "bfloat16"})
_WRITES = frozenset(
    {Kind.ALL_REDUCE, Kind.ALL_GATHER, Kind.REDUCE_SCATTER, Kind.ALL_TO_ALL, Kind.BROADCAST, Kind.SCATTER, Kind.RECV}
)
_MAX = 20


def misuse(run: CommRun) -> list[Finding]:
    """Return what is wrong with calls whose partners fit, the earliest step first."""
    found = [*_read_early(run), *_flagged(run), *_gaps(run), *_low_precision(run)]
    return sorted(found, key=lambda each: -1 if each.step is None else each.step)[:_MAX]


def _read_early(run: CommRun) -> Iterator[Finding]:
    """Results that an optimizer read before anybody had waited for them."""
    seen: dict[tuple[int, str], tuple[Call, dict[int, Call]]] = {}
    for rank, member in run.members.items():
        calls = {call.serial: call for call in member.ring.calls}
        for note in member.ring.records:
            if note.kind is Kind.READ and note.seq in calls:
                seen.setdefault((note.step, note.name), (note, {}))[1][rank] = calls[note.seq]
    for (step, name), (_, calls) in sorted(seen.items(), key=lambda item: item[0][0]):
        call = calls[min(calls)]
        yield finding(
            "collective.read_early",
            name=name,
            step=step,
            ranks=sorted(calls),
            evidence={
                "started": told(call),
                "read": "by the optimizer, before any wait()",
                "times": sum(1 for _, other in seen if other == name),
            },
        )


def _flagged(run: CommRun) -> Iterator[Finding]:
    read = {(rank, note.seq) for rank, m in run.members.items() for note in m.ring.records if note.kind is Kind.READ}
    first: dict[tuple[str, str, str], tuple[Call, list[int], int]] = {}
    for rank, member in run.members.items():
        for call in member.ring.calls:
            if call.flags & CallFlag.OVERWRITTEN:
                key = ("collective.overwritten", call.site, name_of(call))
            elif _never_waited(member, call) and (rank, call.serial) not in read:
                key = ("collective.never_waited", call.site, name_of(call))
            else:
                continue
            known = first.get(key)
            first[key] = (call, [rank], 1) if known is None else (known[0], [*known[1], rank], known[2] + 1)
    for (code, _, name), (call, ranks, times) in first.items():
        yield finding(
            code, name=name, step=call.step, ranks=sorted(set(ranks)), evidence={"call": told(call), "times": times}
        )


def _never_waited(member: Member, call: Call) -> bool:
    """Whether a handle for a result was thrown away, or kept to the end of a run that ended well, without a wait."""
    if not call.flags & CallFlag.ASYNC or call.flags & (CallFlag.WAITED | CallFlag.POLLED | CallFlag.NATIVE):
        return False
    if call.kind not in _WRITES or call.flags & (CallFlag.FAILED | CallFlag.COMPLETE):
        return False
    return bool(call.flags & CallFlag.DROPPED) or member.ring.status is ProcessStatus.FINISHED


def _gaps(run: CommRun) -> Iterator[Finding]:
    seen: set[str] = set()
    for rank, call in gaps(run):
        if call.site not in seen:
            seen.add(call.site)
            ranks = [r for r, other in gaps(run) if other.site == call.site]
            yield finding(
                "collective.strided",
                name=name_of(call),
                step=call.step,
                ranks=sorted({rank, *ranks}),
                ranks_differ=False,
                evidence={"call": told(call)},
            )


def _low_precision(run: CommRun) -> Iterator[Finding]:
    """Gradients of float32 parameters that a hook of the wrapper reduces in 16 bits."""
    for member in run.members.values():
        notes = [note for _, note in member.ring.notes(Kind.REDUCER)]
        if not notes or any(set(note.get("dtypes", [])) & _LOW for note in notes):
            continue
        for call in member.ring.calls:
            if call.flags & CallFlag.BACKWARD and call.kind is Kind.ALL_REDUCE and call.dtype in _LOW:
                yield finding(
                    "collective.low_precision",
                    name=member.reduced[0] if member.reduced else name_of(call),
                    step=call.step,
                    ranks=sorted(run.members),
                    ranks_differ=False,
                    confidence=LIKELY,
                    evidence={"call": told(call), "parameters": notes[0].get("dtypes")},
                )
                return
