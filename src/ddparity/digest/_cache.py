"""A cache for tables that depend on a tensor's shape and sample identities alone: they come back every step."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

V = TypeVar("V")


class Bounded(Generic[V]):
    """A cache of bounded size that forgets what was used longest ago; the newest entry always fits.

    Args:
        max_bytes: What all entries together may take.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._entries: OrderedDict[Hashable, tuple[V, int]] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], tuple[V, int]]) -> V:
        """Return the entry of ``key``; ``make`` returns it and its size in bytes if it is not there."""
        entry = self._entries.get(key)
        if entry is not None:
            self._entries.move_to_end(key)
            return entry[0]
        entry = self._entries[key] = make()
        self._num_bytes += entry[1]
        while self._num_bytes > self._max_bytes and len(self._entries) > 1:
            self._num_bytes -= self._entries.popitem(last=False)[1][1]
        return entry[0]

    @property
    def num_bytes(self) -> int:
        """What the entries take together."""
        return self._num_bytes
