"""The states of a job and which may follow which."""

from enum import StrEnum


class State(StrEnum):
    """Where a job stands. STARTING has its slots and no process yet; callers see it as PENDING."""

    PENDING = "PENDING"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    LOST = "LOST"

    @property
    def terminal(self) -> bool:
        """Whether nothing follows any more: no process of the job is left, and its slots are free."""
        return self in TERMINAL

    @property
    def shown(self) -> str:
        """The word that callers see."""
        return "PENDING" if self is State.STARTING else self.value


TERMINAL = frozenset({State.COMPLETED, State.FAILED, State.CANCELLED, State.LOST})
ACTIVE = frozenset({State.STARTING, State.RUNNING})
FOLLOWS: dict[State, frozenset[State]] = {
    State.PENDING: frozenset({State.STARTING, State.CANCELLED, State.FAILED}),
    State.STARTING: frozenset({State.RUNNING, *TERMINAL}),
    State.RUNNING: TERMINAL,
    State.COMPLETED: frozenset(),
    State.FAILED: frozenset(),
    State.CANCELLED: frozenset(),
    State.LOST: frozenset(),
}
"""Every transition there is; any other is refused by the store."""
