"""A dictionary keyed by the object itself, whose entries end with it: an id may be given to another object later."""

import weakref
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

V = TypeVar("V")

_SWEEP_AT = 1024


class IdentityMap(Generic[V]):
    """Values for modules, tensors and optimizers, by identity; none of them is kept alive."""

    def __init__(self) -> None:
        self._entries: dict[int, tuple[weakref.ref[Any], V]] = {}
        self._sweep_at = _SWEEP_AT

    def get(self, thing: Any) -> V | None:
        """Return the value of ``thing``, or None."""
        entry = self._entries.get(id(thing))
        return entry[1] if entry is not None and entry[0]() is thing else None

    def put(self, thing: Any, value: V) -> None:
        """Set the value of ``thing``."""
        self._entries[id(thing)] = (weakref.ref(thing), value)
        if len(self._entries) > self._sweep_at:
            self._entries = {key: entry for key, entry in self._entries.items() if entry[0]() is not None}
            self._sweep_at = max(_SWEEP_AT, 2 * len(self._entries))

    def remove(self, thing: Any) -> None:
        """Forget ``thing`` if it is there."""
        if thing in self:
            del self._entries[id(thing)]

    def clear(self) -> None:
        """Forget everything."""
        self._entries.clear()

    def things(self) -> Iterator[Any]:
        """Yield what still exists, in the order in which it came."""
        for reference, _ in list(self._entries.values()):
            thing = reference()
            if thing is not None:
                yield thing

    def values(self) -> Iterator[V]:
        """Yield the values of what still exists."""
        for reference, value in list(self._entries.values()):
            if reference() is not None:
                yield value

    def __contains__(self, thing: Any) -> bool:
        entry = self._entries.get(id(thing))
        return entry is not None and entry[0]() is thing

    def __bool__(self) -> bool:
        return next(self.things(), None) is not None
