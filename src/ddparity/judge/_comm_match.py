"""The n-th call of a group, held against the n-th call of the same group on its other ranks."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ddparity.trace._ring_format import GAPS, CallFlag, Kind
from ddparity.trace._rings import Call, loops

from ._comm_run import CommRun, Group

_PLAIN = re.compile(r"[A-Za-z_][\w.\[\]]*")
_NEAR = 64
"""How far apart two calls may stand that were swapped."""
_SAME_SHAPE = frozenset(
    {Kind.ALL_REDUCE, Kind.BROADCAST, Kind.REDUCE, Kind.ALL_GATHER, Kind.GATHER, Kind.REDUCE_SCATTER}
)
_SYMMETRIC = frozenset({Kind.ALL_REDUCE, Kind.ALL_GATHER, Kind.REDUCE_SCATTER, Kind.ALL_TO_ALL})
_REDUCING = frozenset({Kind.ALL_REDUCE, Kind.REDUCE, Kind.REDUCE_SCATTER})


@dataclass
class Divergence:
    """The first call of a group in which its ranks do not agree.

    Attributes:
        group: The group.
        seq: Number of the call in the group.
        code: The cause, by what differs.
        calls: The call of each rank that made it.
        absent: Ranks that did not.
    """

    group: Group
    seq: int
    code: str
    calls: dict[int, Call]
    absent: list[int]

    @property
    def entered(self) -> int:
        """When the first rank made this call."""
        return min(call.entered for call in self.calls.values())


def compare_group(group: Group, run: CommRun) -> tuple[int, Divergence | None]:
    """Return how many calls were compared, and the first in which the ranks do not agree."""
    ranks = [rank for rank in group.ranks if rank in run.members]
    if len(ranks) < 2:
        return 0, None
    checked = 0
    for seq in sorted({seq for rank in ranks for seq in group.calls.get(rank, {})}):
        calls = {rank: group.calls[rank][seq] for rank in ranks if seq in group.calls.get(rank, {})}
        absent = [rank for rank in ranks if rank not in calls]
        if absent:
            if all(group.last(rank) > seq for rank in absent):
                continue  # overwritten in the ring of some
            return checked, Divergence(
                group, seq, "collective.missing", calls, [r for r in absent if group.last(r) < seq]
            )
        checked += 1
        code = _differs(calls) or _swapped(group, seq, calls) or _shifted(calls)
        if code:
            return checked, Divergence(group, seq, code, calls, [])
    return checked, None


def _differs(calls: dict[int, Call]) -> str:
    first, *rest = calls.values()
    uneven = any(call.flags & CallFlag.UNEVEN for call in calls.values())
    for call in rest:
        if call.kind is not first.kind:
            return "collective.operation"
        if call.root != first.root:
            return "collective.root"
        if call.dtype != first.dtype:
            return "collective.dtype"
        if first.kind in _REDUCING and call.reduce_op != first.reduce_op:
            return "collective.reduce_op"
        if uneven or first.kind not in _SAME_SHAPE:
            continue
        if call.numel != first.numel:
            return "collective.size"
        if call.shape != first.shape:
            return "collective.shape"
        if call.layout != first.layout and first.kind in _REDUCING | {Kind.BROADCAST}:
            return "collective.layout"
    return ""


def _swapped(group: Group, seq: int, calls: dict[int, Call]) -> str:
    """Tell whether two ranks make the same calls here in another order, alike in all that the backend sees.

    Calls are told apart by their parameter, else by the place of the call, by who called that place, or by what was
    passed there. A difference alone is none: the branches of an ``if`` may hold the same call.
    """
    (one, mine), *others = calls.items()
    if mine.kind not in _SYMMETRIC:
        return ""
    for other, theirs in others:
        for identity in _IDENTITIES:
            a, b = identity(mine), identity(theirs)
            if a and b and a != b and (b, a) in _pairs(group, one, other, seq, identity):
                return "collective.order"
    return ""


def _shifted(calls: dict[int, Call]) -> str:
    """Tell whether gradients of different training steps met: a rank has left out the reduction of one."""
    gradients = all(c.kind in _REDUCING and (c.flags & CallFlag.BACKWARD or c.name) for c in calls.values())
    steps = {call.step for call in calls.values()}
    return "collective.shifted" if gradients and len(steps) > 1 and min(steps) >= 0 else ""


def _pairs(group: Group, one: int, other: int, seq: int, identity: Callable[[Call], str]) -> set[tuple[str, str]]:
    ours, theirs = group.calls[one], group.calls[other]
    near = range(seq + 1, seq + _NEAR)
    return {(identity(ours[n]), identity(theirs[n])) for n in near if n in ours and n in theirs}


_IDENTITIES: tuple[Callable[[Call], str], ...] = (
    lambda call: call.name,
    lambda call: call.stack[0] if call.stack and not call.name else "",
    lambda call: call.stack[1] if len(call.stack) > 1 and not call.name else "",
    lambda call: call.argument if _PLAIN.fullmatch(call.argument) and not call.name else "",
)


def gaps(run: CommRun) -> Iterator[tuple[int, Call]]:
    """Yield calls that gave gloo a tensor with gaps between its elements: it takes the memory as it lies."""
    for rank, member in run.members.items():
        for call in member.ring.calls:
            group = run.groups.get(call.group)
            if call.layout.startswith(GAPS) and group is not None and group.backend == "gloo":
                yield rank, call


def left_loop(one: Call, other: Call) -> bool:
    """Whether ``one`` was made after a loop that ``other`` still goes round, in the same function."""
    for frame in one.stack:
        for theirs in other.stack:
            if _function(frame) == _function(theirs):
                return bool(set(loops(theirs)) - set(loops(frame))) and _line(frame) > _line(theirs)
    return False


def _function(frame: str) -> tuple[str, str]:
    place, _, name = frame.partition(" @")[0].partition(" in ")
    return place.rpartition(":")[0], name


def _line(frame: str) -> int:
    line = frame.partition(" in ")[0].rpartition(":")[2]
    return int(line) if line.isdecimal() else 0


def is_new(group: Group, rank: int, call: Call) -> bool:
    """Whether no rank of the group made a call from this place before."""
    return not any(
        earlier.site == call.site and earlier.kind is call.kind
        for held in group.calls.values()
        for seq, earlier in held.items()
        if seq < call.seq
    )
