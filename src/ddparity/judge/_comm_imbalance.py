"""Ranks that are late because they hold more samples or tokens than the others, the same rank each time or not."""

from collections import Counter, defaultdict
from statistics import fmean, median

from ddparity.trace import RankTrace

from ._comm_finding import finding
from ._comm_pace import LATE_SECONDS, LATE_SHARE, MIN_STEPS, MOST, lateness, pace_of
from ._comm_run import CommRun
from ._run import RankStep, Run
from ._verdict import Finding

_MORE = 1.25
"""How much more than the others a rank must hold."""
_MOST_OF_MANY, _MANY = 0.9, 8
"""In which share of how many steps the last rank must hold the most, where it is another one each time."""

Held = dict[int, dict[int, int]]
"""Rank -> step -> how many tokens, or samples."""


def imbalance(run: CommRun, candidate: Run) -> list[Finding]:
    """Tell whether in most steps the last rank is one that held more than the others."""
    unit, held = _held(candidate)
    late = lateness(run)
    if len(late) < 2 or late.keys() != held.keys():
        return []
    steps = sorted(set.intersection(*map(set, late.values()), *map(set, held.values())))
    last = {step: max(late, key=lambda rank: late[rank][step]) for step in steps}
    fits = [step for step in steps if _times_the_others(held, last[step], step) >= _MORE]
    ranks = Counter(last[step] for step in fits)
    share, least = (MOST, MIN_STEPS) if len(ranks) == 1 else (_MOST_OF_MANY, _MANY)
    if len(steps) < least or len(fits) < share * len(steps):
        return []
    lag = median(late[last[step]][step] for step in fits)
    whole = [parts["step"] for member in run.members.values() for parts in pace_of(member).steps.values()]
    if lag < LATE_SECONDS or lag < LATE_SHARE * median(whole or [0.0]):
        return []
    return [
        finding(
            "pace.imbalance",
            name=f"rank:{ranks.most_common(1)[0][0]}",
            step=fits[0],
            ranks=ranks,
            evidence={
                "late_by_ms": round(1e3 * lag, 1),
                "last_with_more": f"{len(fits)} of {len(steps)} steps",
                "times_the_others": round(median(_times_the_others(held, last[step], step) for step in fits), 2),
                f"{unit}_a_step": {f"rank {r}": median(by_step[s] for s in steps) for r, by_step in held.items()},
            },
        )
    ]


def _times_the_others(held: Held, rank: int, step: int) -> float:
    others = fmean(by_step[step] for other, by_step in held.items() if other != rank)
    return held[rank][step] / others if others else 0.0


def _held(candidate: Run) -> tuple[str, Held]:
    """Return what each rank held in each step: labels that count, where its loader told them, else samples."""
    labels = {rank.facts.rank: _labels(rank) for rank in candidate.trial.ranks}
    if labels and all(labels.values()):
        return "labels", labels
    return "samples", {rank: _samples(steps) for rank, steps in candidate.ranks.items()}


def _labels(rank: RankTrace) -> dict[int, int]:
    loads = rank.loads
    found: dict[int, int] = defaultdict(int)
    if len(loads.step) and loads.labels.min() >= 0:
        for step, number in zip(loads.step.tolist(), loads.labels.tolist(), strict=True):
            found[step] += number
    return dict(found)


def _samples(steps: dict[int, RankStep]) -> dict[int, int]:
    counted = {step: sum(len(s.ids) for s in held.samples if s.training) for step, held in steps.items()}
    return {step: number for step, number in counted.items() if number}
