"""What a picture of the calls is made of: a row a rank along the time, around the first call that does not fit."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from ddparity.trace._ring_format import POINT_TO_POINT, Kind
from ddparity.trace._rings import Call

from ._bounded import some_ranks
from ._comm_finding import sites
from ._comm_run import CommRun, Member
from ._verdict import Finding

_MAX_BARS = 600
_MAX_OF_A_ROW = 40
_MAX_NAMES = 40
_BEFORE = 8
"""So many calls are shown before the one that matters."""
_MARGIN = 0.15
_PHASES = frozenset({Kind.DATA, Kind.FORWARD, Kind.BACKWARD, Kind.OPTIMIZER})
_MAX_PHASES = 24


class Bar(msgspec.Struct, kw_only=True):
    """One call, or one phase of a step.

    Attributes:
        begin: When, milliseconds from the left end of the picture.
        end: When it was done; of one that waits, the last sign of life of its rank.
        waits: Whether its rank was still in it then.
        op: The operation, or the phase.
        group: Of a call: the process group.
        number: Its number in the group.
        step: The training step.
        first: Whether it is the call of the finding.
    """

    begin: float
    end: float
    op: str
    group: str = ""
    number: int = 0
    step: int = -1
    waits: bool = False
    first: bool = False


class CallsRow(msgspec.Struct, kw_only=True):
    """One rank.

    Attributes:
        rank: The rank.
        calls: Its calls in the order in which it made them.
        phases: The phases of its steps meanwhile.
        left_out: How many calls of the span are left out, the earliest.
        ended: When it raised or its process ended, milliseconds from the left end; None if outside of the picture.
        raised: Whether it raised.
        how: How it ended, or where it was, in words.
        concerned: Whether the finding names it.
    """

    rank: int
    calls: list[Bar]
    phases: list[Bar] = []
    left_out: int = 0
    ended: float | None = None
    raised: bool = False
    how: str = ""
    concerned: bool = False


class CallName(msgspec.Struct, kw_only=True):
    """One call of a group.

    Attributes:
        group: The process group.
        number: Its number in the group.
        step: The training step, the lowest over the ranks.
        told: What ranks asked for and where, by the ranks that asked alike.
        first: Whether it is the call of the finding.
    """

    group: str
    number: int
    step: int
    told: dict[str, str]
    first: bool = False


class CallsPicture(msgspec.Struct, kw_only=True):
    """The calls of all ranks over a span of time.

    Attributes:
        span: Milliseconds from the left end to the right one.
        rows: One for each rank.
        names: What each call of the picture asked for.
        num_ranks: How many ranks there were before some were left out.
        names_left_out: How many calls have no entry in ``names``.
        name: What the finding is about, if there is one.
        code: Its cause.
        several_hosts: Whether the ranks' clocks are those of several hosts, which need not agree.
    """

    span: float
    rows: list[CallsRow]
    names: list[CallName]
    num_ranks: int
    names_left_out: int = 0
    name: str = ""
    code: str = ""
    several_hosts: bool = False


@dataclass
class _Focus:
    """The call that matters, or the step, and the time around it."""

    group: str
    number: int
    ranks: list[int]
    waiting: set[tuple[int, int]]
    """Rank and serial number of the calls that ranks were still in at their last sign of life."""
    begin: float = 0.0
    end: float = 0.0

    def of(self, call: Call) -> bool:
        """Whether a call is the one."""
        here = bool(self.group) and call.group == self.group and call.seq == self.number
        return here and call.kind not in POINT_TO_POINT

    def waits(self, member: Member, call: Call) -> bool:
        """Whether a rank was still in a call at its last sign of life."""
        return (member.rank, call.serial) in self.waiting


def picture_calls(run: CommRun, findings: Sequence[Finding]) -> CallsPicture | None:
    """Return the calls around the first communication finding, or those of the last step; None where there is none."""
    if len(run.members) < 2 or not run.num_calls:
        return None
    found = [each for each in findings if each.layer == "communication"]
    finding = next((each for each in found if each.follows is None), found[0] if found else None)
    focus = _focus(run, finding)
    chosen = some_ranks(run.members, focus.ranks)
    room = max(1, min(_MAX_OF_A_ROW, _MAX_BARS // len(chosen)))
    members = {rank: run.members[rank] for rank in chosen}
    inside = {rank: [c for c in each.ring.calls if _overlaps(each, c, focus)] for rank, each in members.items()}
    rows = [_row(member, inside[rank], focus, room) for rank, member in members.items()]
    names = _names(run, {rank: calls[-room:] for rank, calls in inside.items()}, focus)
    return CallsPicture(
        span=round(1e3 * (focus.end - focus.begin), 4),
        rows=rows,
        names=names[-_MAX_NAMES:],
        num_ranks=len(run.members),
        names_left_out=max(0, len(names) - _MAX_NAMES),
        name="" if finding is None else finding.name,
        code="" if finding is None else finding.cause.code,
        several_hosts=len(set(run.hosts().values())) > 1,
    )


def _focus(run: CommRun, finding: Finding | None) -> _Focus:
    ranks = [] if finding is None else list(finding.ranks or [])
    focus = _Focus("", 0, ranks, {key for member in run.members.values() for key in _waiting(member)})
    if finding is not None:
        group, number = finding.evidence.get("group"), finding.evidence.get("call")
        if isinstance(group, str) and isinstance(number, int):
            focus.group, focus.number = group, number
    entered = [(member, call) for member in run.members.values() for call in member.ring.calls if focus.of(call)]
    if entered:
        _around_call(run, focus, entered)
    else:
        _around_step(run, focus, None if finding is None else finding.step)
    span = max(focus.end - focus.begin, 1e-6)
    focus.end = focus.begin + span
    focus.begin -= _MARGIN / 5 * span
    focus.end += _MARGIN * span
    return focus


def _around_call(run: CommRun, focus: _Focus, entered: list[tuple[Member, Call]]) -> None:
    """Take the time from some calls before, of this step and of the one before it, to the last rank's entry."""
    latest = max(member.ring.wall(call.entered) for member, call in entered)
    step = min(call.step for _, call in entered) - 1
    focus.begin = focus.end = latest
    for member in run.members.values():
        near = [call for call in member.ring.calls if call.step >= step]
        before = [call for call in near if member.ring.wall(call.entered) <= latest]
        if before:
            focus.begin = min(focus.begin, member.ring.wall(before[-_BEFORE:][0].entered))


def _around_step(run: CommRun, focus: _Focus, step: int | None) -> None:
    """Take the time of one step on all ranks: the finding's, or the last that has calls.

    Of a step that some rank never finished the one before it is shown as well, up to where the first rank gave up.
    """
    every = [(member, call) for member in run.members.values() for call in member.ring.calls]
    known = {call.step for _, call in every}
    chosen = step if step in known else max(known)
    stuck = any(call.step == chosen and focus.waits(member, call) for member, call in every)
    shown = [(m, call) for m, call in every if call.step == chosen or (stuck and call.step == chosen - 1)]
    focus.begin = min(member.ring.wall(call.entered) for member, call in shown)
    focus.end = max(member.ring.wall(_done(call)) for member, call in shown)
    ends = [end for rank in focus.ranks if rank in run.members and (end := _end(run.members[rank])) is not None]
    if stuck and ends:
        focus.end = max(focus.end, min(ends))


def _end(member: Member) -> float | None:
    """Return when a rank raised, or else when its process ended, as far as that is known."""
    return member.ended if member.error is None else member.error.time


def _row(member: Member, calls: list[Call], focus: _Focus, room: int) -> CallsRow:
    phases = [mark for mark in member.ring.records if mark.kind in _PHASES and _overlaps(member, mark, focus)]
    ended = _end(member)
    at = None if ended is None else _since(ended, focus)
    return CallsRow(
        rank=member.rank,
        calls=[_bar(member, call, focus, waits=focus.waits(member, call)) for call in calls[-room:]],
        phases=[_bar(member, mark, focus) for mark in phases[-_MAX_PHASES:]],
        left_out=max(0, len(calls) - room),
        ended=at if ended is not None and focus.begin <= ended <= focus.end else None,
        raised=member.error is not None,
        how=member.describe(),
        concerned=member.rank in focus.ranks,
    )


def _waiting(member: Member) -> Iterator[tuple[int, int]]:
    """Yield the calls that a rank was still in: the last of each group, where it was never seen to complete.

    Of calls that C++ makes nobody sees the completion; those before another one of the group were completed.
    """
    last = {call.group: call for call in member.ring.calls}
    yield from ((member.rank, call.serial) for call in last.values() if not call.done)


def _done(call: Call) -> int:
    """Return when a call was done, or where that was not seen, when it had been handed on."""
    return max(call.done or call.launched, call.entered)


def _overlaps(member: Member, call: Call, focus: _Focus) -> bool:
    waits = call.kind not in _PHASES and focus.waits(member, call)
    done = float("inf") if waits else member.ring.wall(_done(call))
    return member.ring.wall(call.entered) <= focus.end and done >= focus.begin


def _since(time: float, focus: _Focus) -> float:
    return round(1e3 * (time - focus.begin), 4)


def _bar(member: Member, call: Call, focus: _Focus, *, waits: bool = False) -> Bar:
    mark = call.kind in _PHASES
    return Bar(
        begin=_since(member.ring.wall(call.entered), focus),
        end=_since((member.ended or member.last_seen) if waits else member.ring.wall(_done(call)), focus),
        op=call.op,
        group="" if mark else call.group,
        number=0 if mark else call.seq,
        step=call.step,
        waits=waits,
        first=not mark and focus.of(call),
    )


def _names(run: CommRun, shown: dict[int, list[Call]], focus: _Focus) -> list[CallName]:
    """Say what each call of the picture asked for, in the order of time; a transfer belongs to one rank alone."""
    times: dict[tuple[str, int, int], float] = {}
    alone: dict[tuple[str, int, int], dict[int, Call]] = {}
    for rank, calls in shown.items():
        for call in calls:
            transfer = call.kind in POINT_TO_POINT
            key = (call.group, call.seq, rank if transfer else -1)
            time = run.members[rank].ring.wall(call.entered)
            times[key] = min(times.get(key, time), time)
            if transfer:
                alone[key] = {rank: call}
    found = []
    for key in sorted(times, key=lambda each: times[each]):
        group, number, _ = key
        known = run.groups[group].calls if group in run.groups else {}
        calls = alone.get(key) or {rank: held[number] for rank, held in known.items() if number in held}
        if calls:
            step = min(call.step for call in calls.values())
            first = key not in alone and (group, number) == (focus.group, focus.number)
            found.append(CallName(group=group, number=number, step=step, told=sites(calls), first=first))
    return found
