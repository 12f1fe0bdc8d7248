"""From the ranks' digests to the logical tensor's: replicas, shards along a dimension, samples over ranks and calls."""

import math
from dataclasses import dataclass

from ddparity.digest import Digest, distance, merge_shards, same
from ddparity.trace import DigestRow

from ._plan import Pieces, pieces_of
from ._run import RankStep


@dataclass(frozen=True)
class Logical:
    """A parameter-like tensor merged over the ranks.

    Attributes:
        digest: The logical tensor's.
        spread: Largest distance between two copies that should be equal.
        ranks: Ranks whose copy is not rank 0's (or the first rank's that has one).
        missing: Ranks that have none although others do.
        reason: Why the merge is not proved; empty if it is.
    """

    digest: Digest
    spread: float = 0.0
    ranks: tuple[int, ...] = ()
    missing: tuple[int, ...] = ()
    reason: str = ""


def merge_parameter(rows: dict[int, DigestRow | None]) -> Logical | None:
    """Merge one tensor's digests of all ranks by their placement; None if no rank has any."""
    there = {rank: row for rank, row in rows.items() if row is not None}
    if not there:
        return None
    missing = tuple(rank for rank in rows if rank not in there)
    sharded = [row for row in there.values() if row.site.global_shape is not None]
    if not sharded:
        first = next(iter(there.values())).digest
        return _copies(first, {rank: row.digest for rank, row in there.items()}, missing)
    return _shards(there, missing)


def _copies(first: Digest, digests: dict[int, Digest], missing: tuple[int, ...]) -> Logical:
    spread, others = 0.0, list[int]()
    for rank, digest in digests.items():
        if not same(first, digest):
            others.append(rank)
            spread = max(spread, distance(first, digest) if digest.shape == first.shape else math.inf)
    return Logical(first, spread, tuple(others), missing)


def _shards(there: dict[int, DigestRow], missing: tuple[int, ...]) -> Logical:
    by_offset: dict[tuple[int, ...], dict[int, Digest]] = {}
    for rank, row in there.items():
        by_offset.setdefault(row.site.offsets or (), {})[rank] = row.digest
    shape = next(iter(there.values())).site.global_shape or ()
    if any("P(" in row.site.placement for row in there.values()):
        return Logical(next(iter(there.values())).digest, missing=missing, reason="partial placement")
    parts = [_copies(next(iter(copies.values())), copies, ()) for copies in by_offset.values()]
    merged = merge_shards([part.digest for part in parts if part.digest.count], shape) if parts else None
    if merged is None or merged.count != math.prod(shape):
        return Logical(parts[0].digest, missing=missing, reason="the shards do not make up the whole")
    others = tuple(rank for part in parts for rank in part.ranks)
    return Logical(merged, max(part.spread for part in parts), others, missing)


def merge_calls(rows: list[DigestRow]) -> Digest:
    """Merge one module's calls on disjoint batches of samples."""
    return merge_shards([row.digest for row in rows])


def samples_of(rows: list[DigestRow], step: RankStep) -> Pieces:
    """Return which samples, or slices of them, some calls worked on."""
    return pieces_of(step, {row.batch for row in rows})


def layout_of(rows: list[DigestRow]) -> int | None:
    """Return rows a sample if all calls agree on it: 0 for tensors keyed by position; None if they do not agree."""
    layouts = {row.rows for row in rows}
    return layouts.pop() if len(layouts) == 1 else None
