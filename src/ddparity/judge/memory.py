"""The memory layer: what each rank holds in each step, whether it grows, and whether it ran out.

Growth, imbalance and errors are read from the candidate alone; where it needs more than the control did for at least
as many samples, that is found too.
"""

from ddparity._errors import TraceError

from ._comm_run import CommRun, load_comm
from ._memory_growth import evaluation_growth, growth, unsettled
from ._memory_oom import out_of_memory
from ._memory_ranks import beyond_control, evaluation_beyond_control, imbalance, retained
from ._memory_run import MemoryRank, load_memory, size
from ._run import Run
from ._verdict import Finding, LayerVerdict, Status

_MIN_STEPS = 5
STABLE, TIGHT = 0.80, 0.92
"""Shares of the capacity up to which a peak is called stable, and tight; above it is prone to run out."""


_ENDS = frozenset({"memory.out_of_memory", "memory.killed"})
_SEEN_AS = frozenset({"rank.raised", "rank.killed", "rank.exited", "collective.late", "collective.left"})


def judge(control: Run | None, candidate: Run) -> tuple[LayerVerdict, list[Finding]]:
    """Judge what the candidate's ranks held; the findings come in the order in which they show.

    Without a control everything is asked that the candidate answers by itself.
    """
    ranks = load_memory(candidate)
    alone = None if control is None else next(iter(load_memory(control).values()), None)
    found = out_of_memory(_rings(candidate), ranks)
    found += growth(ranks)
    found += evaluation_growth(ranks)
    found += imbalance(ranks)
    if control is not None and alone is not None:
        found += retained(alone, ranks)
        found += beyond_control(control, candidate, alone, ranks)
        if not any(each.name == "memory:evaluation" for each in found):
            found += evaluation_beyond_control(alone, ranks)
    checked = sum(len(each.steps) for each in ranks.values())
    if found:
        found = _in_order(found)
        first = found[0]
        at = "" if first.step is None else f"step {first.step}, "
        reason = f"first deviation: {at}{first.name}, {first.cause.code}"
        return LayerVerdict(status=Status.DEVIATES, checked=max(checked, 1), reason=reason), found
    if not checked:
        return LayerVerdict(status=Status.NOT_TESTED, reason="no training step was recorded"), []
    shortest = min(len(each.steps) for each in ranks.values())
    if shortest < _MIN_STEPS:
        reason = f"{shortest} steps are too few to tell growth from starting up: record at least {_MIN_STEPS}"
        return LayerVerdict(status=Status.NOT_TESTED, checked=checked, reason=reason), []
    return LayerVerdict(status=Status.PASS, checked=checked, reason=_passed(ranks)), []


def blame(findings: list[Finding]) -> None:
    """Let the end of a rank that ran out of memory, which communication sees too, follow from that."""
    root = next((n for n, each in enumerate(findings) if each.cause.code in _ENDS), None)
    if root is None:
        return
    for finding in findings:
        same = set(finding.ranks or ()) <= set(findings[root].ranks or ())
        if finding.layer == "communication" and finding.follows is None and same and finding.cause.code in _SEEN_AS:
            finding.follows = root


def band(share: float) -> str:
    """Return what a peak of this share of the capacity is called."""
    return "STABLE" if share <= STABLE else "TIGHT" if share <= TIGHT else "OOM-PRONE"


def _rings(candidate: Run) -> CommRun | None:
    try:
        return load_comm(candidate.trial.folder)
    except TraceError:  # the communication layer says so
        return None


def _in_order(findings: list[Finding]) -> list[Finding]:
    """Sort by when something shows; an error is the root of the same step's, and growth of an error that it led to."""
    return sorted(
        findings, key=lambda each: (each.step is None, each.step or 0, each.cause.code != "memory.out_of_memory")
    )


def _passed(ranks: dict[int, MemoryRank]) -> str:
    rank, worst = max(ranks.items(), key=lambda item: item[1].peak[0])
    peak, point, step = worst.peak
    num, rise = min(len(each.steps) for each in ranks.values()), unsettled(ranks)
    level = f"what a step leaves behind stays level over {num} steps"
    if rise:
        level = f"what a step leaves behind rises by {size(rise)}, unevenly, over {num} steps, and no variable holds it"
    parts = [
        level,
        f"most held: {size(peak)} ({point.replace('_', ' ')} of step {step}, rank {rank})",
    ]
    if worst.capacity:
        last = max(worst.steps, key=lambda each: each.rss)
        used = max(peak, last.reserved) if last.source == "cuda" else max(last.rss, peak)
        share = used / worst.capacity
        parts.append(f"{share:.0%} of {size(worst.capacity)} ({worst.capacity_by}): {band(share)}")
    return "; ".join(parts)
