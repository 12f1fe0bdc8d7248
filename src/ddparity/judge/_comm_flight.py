"""What the dumps of PyTorch's flight recorder tell, put as rings would be, so that the same rules judge them.

A dump knows neither reduce op, root nor strides, and with gloo neither the ranks of a group nor what has completed; so
it says less than a ring does. The table of groups, which torch leaves empty with gloo, is made from who called in them.
"""

from collections import defaultdict
from collections.abc import Sequence

from ddparity.trace._flight import FlightDump
from ddparity.trace._ring_format import Field
from ddparity.trace._rings import Ring

from ._comm_match import Divergence, compare_group
from ._comm_run import CommRun, Group, Member


def flight_run(dumps: Sequence[FlightDump]) -> CommRun:
    """Return the dumps of several ranks as one run."""
    members = {dump.rank: Member(dump.rank, _ring(dump)) for dump in dumps}
    ranks: dict[str, set[int]] = defaultdict(set)
    for dump in dumps:
        for name, told in dump.ranks.items():
            ranks[name].update(told)
        for name in {call.group for call in dump.calls}:
            ranks[name].add(dump.rank)
    if "world" in ranks:
        ranks["world"].update(members)
    groups = {name: Group(name, sorted(held)) for name, held in sorted(ranks.items())}
    for rank, member in members.items():
        for call in member.ring.records:
            groups[call.group].calls[rank][call.seq] = call
    size = max((rank for held in ranks.values() for rank in held), default=-1) + 1
    return CommRun(members, groups, {}, size)


def _ring(dump: FlightDump) -> Ring:
    last = max((call.entered for call in dump.calls), default=0)
    header = {**dict.fromkeys(Field, 0), Field.RANK: dump.rank, Field.HEARTBEAT: max(last, dump.written)}
    header[Field.NUM_RECORDS] = len(dump.calls)
    return Ring(dump.path, header, [""], (), [], dump.calls)


def witnessed(ring: CommRun, flight: CommRun) -> list[str]:
    """Hold the flight recorder against the rings of the same run: the first call that does not fit, by each."""
    lines: list[str] = []
    for label, group in flight.groups.items():
        made = {rank: group.last(rank) for rank in group.ranks if rank in flight.members}
        lines.append(f"{label}: last call by rank " + ", ".join(f"{rank}: #{last}" for rank, last in made.items()))
        theirs = compare_group(group, flight)[1]
        mine = compare_group(ring.groups[label], ring)[1] if label in ring.groups else None
        if theirs is not None or mine is not None:
            lines.append(f"{label}: first call that does not fit: flight recorder {_said(theirs)}, ring {_said(mine)}")
    return lines


def _said(found: Divergence | None) -> str:
    return "none" if found is None else f"#{found.seq} ({found.code})"
