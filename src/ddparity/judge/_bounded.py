"""Cutting what a picture draws down to a size: which ranks, and which points of a curve."""

from collections.abc import Collection, Iterable, Sequence

MAX_RANKS = 64
"""So many ranks have a row or a line of their own in a picture."""


def some_ranks(ranks: Iterable[int], wanted: Iterable[int] = (), limit: int = MAX_RANKS) -> list[int]:
    """Return at most so many ranks in order: those that are wanted, then others spread over all of them."""
    every = sorted(set(ranks))
    if len(every) <= limit:
        return every
    kept = [rank for rank in dict.fromkeys(wanted) if rank in set(every)][:limit]
    rest = [rank for rank in every if rank not in set(kept)]
    room = limit - len(kept)
    return sorted([*kept, *(rest[i * len(rest) // room] for i in range(room))])


def some_points(values: Sequence[float], limit: int, keep: Collection[int] = ()) -> list[int]:
    """Return the indices of at most so many points of a curve: both ends, those to keep, and of each stretch the top.

    A curve of memory is looked at for its highest points, which an even choice would miss.
    """
    num = len(values)
    if num <= limit:
        return list(range(num))
    fixed = [0, *(index for index in keep if 0 <= index < num), num - 1][:limit]
    stretches = max(1, limit - len(fixed))
    tops = []
    for i in range(stretches):
        stretch = range(i * num // stretches, (i + 1) * num // stretches)
        tops.append(max(stretch, key=lambda index: values[index]))
    return sorted({*fixed, *tops})[: max(limit, 1)] if limit > len(fixed) else sorted(set(fixed))
