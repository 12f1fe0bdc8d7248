"""What the gate has proved: the code whose single-device path ran well, and the controls recorded of it."""

import time

from sqlalchemy import Table, delete, insert, select

from ddparity.gateway._database import Database
from ddparity.gateway._tables import GateRow
from ddparity.trace import TrialStatus
from ddparity.trials import Store

_GATES: Table = GateRow.__table__  # type: ignore[assignment]


class Gates:
    """The gate's memory.

    Args:
        database: Where it is kept.
        store: The store of trials, in which the controls stand.
    """

    def __init__(self, database: Database, store: Store) -> None:
        self._database = database
        self._store = store

    def passed(self, fingerprint: str) -> bool:
        """Return whether the single-device path of this code ran well; a failure is forgotten by the next try."""
        with self._database.read() as connection:
            status = connection.scalar(select(_GATES.c.status).where(_GATES.c.fingerprint == fingerprint))
        return status in ("PASS", "INCONCLUSIVE")

    def has_control(self, name: str) -> bool:
        """Return whether a control of that name is in the store."""
        return any(
            facts.name == name and facts.control and facts.status is TrialStatus.COMPLETED
            for facts in self._store.trials()
        )

    def remember(self, fingerprint: str, status: str, uid: str) -> None:
        """Keep what the gate said."""
        with self._database.write() as connection:
            connection.execute(delete(_GATES).where(_GATES.c.fingerprint == fingerprint))
            values = {"fingerprint": fingerprint, "status": status, "job_uid": uid, "time": time.time()}
            connection.execute(insert(_GATES).values(values))
