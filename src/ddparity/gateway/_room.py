"""How many jobs more may wait: counted now and then, and in between by what was taken.

Counting thousands of rows for every submission would make a long queue a slow one.
"""

import threading
import time

from sqlalchemy import Connection, Table, func, select

from ddparity.gateway._job import QueueFull
from ddparity.gateway._states import State
from ddparity.gateway._tables import JobRow

_RECOUNT_SECONDS = 1.0
_JOBS: Table = JobRow.__table__  # type: ignore[assignment]


class Room:
    """The room that is left in the queue, for each owner and for all of them together."""

    def __init__(self) -> None:
        self._all = 0
        self._of: dict[str, int] = {}
        self._counted = 0.0
        self._turn = threading.Lock()

    def has(self, owner: str) -> bool:
        """Return whether there is room, as far as is known without counting."""
        with self._turn:
            fresh = time.monotonic() - self._counted < _RECOUNT_SECONDS
            return fresh and self._all > 0 and self._of.get(owner, 0) > 0

    def take(self, owner: str) -> None:
        """Note that one job more waits."""
        with self._turn:
            self._all -= 1
            self._of[owner] = self._of.get(owner, 0) - 1

    def count(self, connection: Connection, owner: str, max_owner: int, max_all: int) -> None:
        """Count anew.

        Raises:
            QueueFull: There is no room.
        """
        waiting = select(_JOBS.c.owner, func.count()).where(_JOBS.c.state == State.PENDING.value)
        rows = connection.execute(waiting.group_by(_JOBS.c.owner)).all()
        counts = {str(row[0]): row[1] for row in rows}
        with self._turn:
            self._counted = time.monotonic()
            self._all = max_all - sum(counts.values())
            self._of = {name: max_owner - number for name, number in {owner: 0, **counts}.items()}
            if self._of[owner] <= 0:
                raise QueueFull(f"{max_owner} of your jobs wait already. Cancel some, or submit when some have run.")
            if self._all <= 0:
                raise QueueFull(f"{max_all} jobs wait already. Submit again when some have run.")
