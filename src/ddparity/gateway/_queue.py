"""Who starts next: a pure function of what waits, what is free and who has how much already."""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """A job in the queue; ``created`` in seconds since the epoch."""

    uid: str
    owner: str
    num_slots: int
    priority: int
    created: float


@dataclass(frozen=True, kw_only=True)
class Policy:
    """How the queue is worked off.

    Attributes:
        max_owner_slots: How many slots one owner may have at a time, or None.
        aging_s: A waiting job gains one step of priority every so many seconds: nothing waits for ever.
        patience_s: A job at the head that has waited so long for room gets what becomes free: nobody overtakes it.
    """

    max_owner_slots: int | None = None
    aging_s: float = 600.0
    patience_s: float = 60.0


def choose(
    waiting: Sequence[Waiting], *, num_free: int, used: Mapping[str, int], policy: Policy, now: float
) -> list[str]:
    """Return which jobs to start now, in order.

    Priority goes first (with what a job has gained by waiting), then the owner who has the fewest slots, then age. A
    job for which there is no room lets smaller ones pass, until its patience ends: then it is served before them.

    Args:
        waiting: The queue, in any order.
        num_free: How many slots are free.
        used: How many slots each owner has.
        policy: The rules.
        now: Seconds since the epoch.
    """
    taken = dict(used)
    chosen: list[str] = []
    left = _ordered(waiting, taken, policy, now)
    while left:
        job = left.popleft()
        mine = taken.get(job.owner, 0)
        if policy.max_owner_slots is not None and mine + job.num_slots > policy.max_owner_slots:
            continue
        if job.num_slots > num_free:
            if now - job.created > policy.patience_s:
                break
            continue
        chosen.append(job.uid)
        num_free -= job.num_slots
        taken[job.owner] = mine + job.num_slots
        left = _ordered(left, taken, policy, now)  # its owner has had a turn
    return chosen


def _ordered(waiting: Iterable[Waiting], taken: Mapping[str, int], policy: Policy, now: float) -> deque[Waiting]:
    return deque(sorted(waiting, key=lambda each: _rank(each, taken, policy, now)))


def _rank(job: Waiting, taken: Mapping[str, int], policy: Policy, now: float) -> tuple[float, int, float, str]:
    gained = max(0.0, now - job.created) // policy.aging_s
    return (-(job.priority + gained), taken.get(job.owner, 0), job.created, job.uid)
