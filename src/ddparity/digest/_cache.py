"""A cache for tables that depend on a tensor's shape and sample identities alone: they come back every step."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

V = TypeVar("V")


class Bounded(Generic[V]):
    """A cache of bounded size that forgets what was used longest ago and keeps nothing larger than itself.

    Args:
        max_bytes: What all entries together may take.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._lock = threading.Lock()  # backward runs in threads of its own where there are accelerators
        self._entries: OrderedDict[Hashable, tuple[V, int]] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], tuple[V, int]]) -> V:
        """Return the entry of ``key``; ``make`` returns it and its size in bytes if it is not there."""
        with self._lock:
            return self._get(key, make)

    def _get(self, key: Hashable, make: Callable[[], tuple[V, int]]) -> V:
        entry = self._entries.get(key)
        if entry is not None:
            self._entries.move_to_end(key)
            return entry[0]
        entry = make()
        if entry[1] <= self._max_bytes:
            self._entries[key] = entry
            self._num_bytes += entry[1]
            while self._num_bytes > self._max_bytes:
                self._num_bytes -= self._entries.popitem(last=False)[1][1]
        return entry[0]

    @property
    def num_bytes(self) -> int:
        """What the entries take together."""
        return self._num_bytes
