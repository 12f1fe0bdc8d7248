"""Gradients reduced over a group that leaves out ranks which hold copies of the same parameter."""

from collections.abc import Iterator

from ddparity.trace import Site
from ddparity.trace._ring_format import CallFlag, Kind
from ddparity.trace._rings import Call

from ._comm_finding import finding, told
from ._comm_run import CommRun, Member
from ._run import RankStep, Run
from ._verdict import Finding

_MAX = 10
_REDUCING = frozenset({Kind.ALL_REDUCE, Kind.REDUCE, Kind.REDUCE_SCATTER})


def small_groups(run: CommRun, candidate: Run) -> Iterator[Finding]:
    """Yield parameters whose copies are equal before a step and whose gradients are not after it, group by group.

    A group smaller than the world is right where the other ranks hold other parts of the parameter, or other
    parameters: so both are asked of the digests, and nothing is said where they were not recorded.
    """
    seen: set[str] = set()
    for rank, member in sorted(run.members.items()):
        for name, call in _reductions(member):
            group = run.groups.get(call.group)
            if group is None or len(group.ranks) >= run.world_size or name in seen or call.step < 0:
                continue
            outside = [
                other
                for other in candidate.ranks
                if other not in group.ranks and _apart(candidate, name, call.step, rank, other)
            ]
            if not outside:
                continue
            seen.add(name)
            yield finding(
                "group.too_small",
                name=name,
                step=call.step,
                ranks=[rank, *outside],
                evidence={
                    "group": group.label,
                    "ranks_in_it": group.ranks,
                    "copies_outside": outside,
                    "call": told(call),
                },
            )
            if len(seen) >= _MAX:
                return


def _reductions(member: Member) -> Iterator[tuple[str, Call]]:
    """Yield the gradients that a rank reduced: named calls, and all parameters of a wrapper's buckets."""
    for call in member.ring.calls:
        if call.kind in _REDUCING and call.name:
            yield call.name, call
        elif call.kind is Kind.ALL_REDUCE and call.flags & CallFlag.BACKWARD and call.flags & CallFlag.NATIVE:
            yield from ((name, call) for name in member.reduced[:_MAX] if name)


def _apart(candidate: Run, name: str, step: int, one: int, other: int) -> bool:
    """Whether two ranks held equal copies of a parameter, took other samples, and ended up with other gradients."""
    ours, theirs = candidate.ranks.get(one, {}), candidate.ranks.get(other, {})
    if step not in ours or step not in theirs:
        return False
    first = min(min(ours), min(theirs))
    before = [_hash(side, Site.PARAMETER, name, first) for side in (ours, theirs)]
    after = [_hash(side, Site.SYNCED_GRADIENT, name, step) for side in (ours, theirs)]
    if None in before or None in after:
        return False
    return before[0] == before[1] and after[0] != after[1]


def _hash(side: dict[int, RankStep], site: Site, name: str, step: int) -> int | None:
    rows = side[step].rows(site, name) if step in side else []
    return rows[0].digest.hash if rows else None
