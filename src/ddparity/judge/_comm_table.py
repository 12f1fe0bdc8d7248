"""The calls between the ranks as tables: what was called how often, and where each rank is."""

from collections import defaultdict
from statistics import median

import msgspec

from ddparity.trace._ring_format import Field
from ddparity.trace._rings import Call

from ._comm_finding import told
from ._comm_run import CommRun

_MAX_ROWS = 200
_MAX_RANKS = 256


class CallRow(msgspec.Struct, kw_only=True):
    """One operation of one process group.

    Attributes:
        group: The process group.
        op: The operation.
        dtype: Of what was sent; empty where there are several.
        fewest: Calls of the rank that made the fewest of them.
        most: Calls of the rank that made the most of them.
        bytes: Of all these calls, on the rank that sent the most.
        median_ms: Milliseconds from entering a call to its end, in the median; None where no end was seen.
        open: How many ranks are in such a call still, their last one.
    """

    group: str
    op: str
    dtype: str = ""
    fewest: int
    most: int
    bytes: int
    median_ms: float | None = None
    open: int = 0


class RankState(msgspec.Struct, kw_only=True):
    """Where one rank is, or how it ended.

    Attributes:
        rank: The rank.
        host: Where it ran.
        pid: Its process there.
        step: The training step it was in.
        calls: How many calls its ring holds.
        lost: How many older records the ring has overwritten.
        last_call: Its last call, and whether it was still in it.
        waits: Whether it was still in it at its last sign of life.
        how: How it ended, or where its main thread stood.
        last_seen: Its last sign of life, in seconds since the epoch.
    """

    rank: int
    host: str
    pid: int
    step: int
    calls: int
    lost: int
    last_call: str
    waits: bool
    how: str
    last_seen: float


class CommTable(msgspec.Struct, kw_only=True):
    """All calls of a trial, counted.

    Attributes:
        world_size: How many ranks there should be.
        missing: Ranks that left no trace of what they called.
        ranks: Where each of the others is.
        rows: Each operation of each group.
        rows_left_out: How many rows there are beside these.
        ranks_left_out: How many ranks there are beside these.
    """

    world_size: int
    missing: list[int] = []
    ranks: list[RankState] = []
    rows: list[CallRow] = []
    rows_left_out: int = 0
    ranks_left_out: int = 0


def tabulate(run: CommRun) -> CommTable:
    """Count the calls of a trial."""
    by_what: dict[tuple[str, str], dict[int, list[Call]]] = defaultdict(lambda: defaultdict(list))
    for rank, member in run.members.items():
        for call in member.ring.calls:
            by_what[call.group, call.op][rank].append(call)
    rows = [_row(run, *what, calls) for what, calls in sorted(by_what.items())]
    states = [_state(run, rank) for rank in sorted(run.members)]
    return CommTable(
        world_size=run.world_size,
        missing=run.missing[:_MAX_RANKS],
        ranks=states[:_MAX_RANKS],
        rows=rows[:_MAX_ROWS],
        rows_left_out=max(0, len(rows) - _MAX_ROWS),
        ranks_left_out=max(0, len(states) - _MAX_RANKS),
    )


def _row(run: CommRun, group: str, op: str, by_rank: dict[int, list[Call]]) -> CallRow:
    calls = [call for each in by_rank.values() for call in each]
    # Who could have made them: the ranks of the group. One that made none is the fewest.
    known = run.groups[group].ranks if group in run.groups else list(by_rank)
    counts = [len(by_rank.get(rank, [])) for rank in known if rank in run.members] or [0]
    times = [(call.done - call.entered) / 1e6 for call in calls if call.done > call.entered]
    dtypes = {call.dtype for call in calls}
    return CallRow(
        group=group,
        op=op,
        dtype=dtypes.pop() if len(dtypes) == 1 else "",
        fewest=min(counts),
        most=max(counts),
        bytes=max(sum(call.num_bytes for call in each) for each in by_rank.values()),
        median_ms=round(median(times), 3) if times else None,
        open=sum(_waits(run, rank) for rank, each in by_rank.items() if each[-1] is run.members[rank].ring.calls[-1]),
    )


def _waits(run: CommRun, rank: int) -> bool:
    """Whether a rank was still in its last call; of calls that C++ makes nobody sees the end while the rank goes on."""
    ring = run.members[rank].ring
    return bool(ring.calls) and not ring.calls[-1].done and not ring[Field.ENDED]


def _state(run: CommRun, rank: int) -> RankState:
    member = run.members[rank]
    last = member.ring.calls[-1] if member.ring.calls else None
    return RankState(
        rank=rank,
        host=member.ring.text(Field.HOST),
        pid=member.ring[Field.PID],
        step=member.ring[Field.STEP],
        calls=len(member.ring.calls),
        lost=member.ring.num_lost,
        last_call="" if last is None else f"#{last.seq} of {last.group}: {told(last)}",
        waits=_waits(run, rank),
        how=member.describe(),
        last_seen=member.last_seen,
    )
