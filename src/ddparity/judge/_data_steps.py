"""Training samples step by step: are they the control's, once each, and if not, in which way not?"""

from collections import Counter
from typing import Any

import numpy as np

from ddparity.trace import RankStatus, TrialStatus

from . import _causes
from ._plan import Pieces, SamplePlan, joined, multiset, plan_samples, wrapper_of
from ._run import RankStep, Run
from ._verdict import Finding, LayerVerdict, Phase, Status

_MAX_FINDINGS = 10


def judge_steps(control: Run, candidate: Run) -> tuple[LayerVerdict, list[Finding]]:
    """Compare, for each training step, the multiset of sample identities over all ranks with the control's."""
    plans = _plans(control, candidate)
    if not plans:
        return LayerVerdict(status=Status.NOT_TESTED, reason="no sample entered a model on both sides"), []
    bad = [step for step, plan in plans.items() if not plan.proved]
    if not bad:
        found = _copies(candidate, plans) or _fewer_steps(control, candidate)
        if found is not None:
            return _verdict([found], len(plans))
        reason = f"the samples of {len(plans)} steps are the control's ({plans[min(plans)].placement})"
        return LayerVerdict(status=Status.PASS, checked=len(plans), reason=reason), []
    if _nothing_in_common(control, candidate, plans):
        reason = _causes.cause("data.unmatched").text
        return LayerVerdict(status=Status.INCONCLUSIVE, checked=len(plans), reason=reason), []
    return _verdict([_finding(step, plans[step], candidate) for step in bad[:_MAX_FINDINGS]], len(plans))


def _plans(control: Run, candidate: Run) -> dict[int, SamplePlan]:
    ours = control.ranks[min(control.ranks)] if control.ranks else {}
    plans: dict[int, SamplePlan] = {}
    for step in sorted(set(control.complete_steps) & set(candidate.complete_steps)):
        if ours[step].batches or any(s[step].batches for s in candidate.ranks.values()):
            plans[step] = plan_samples(ours[step], {r: s[step] for r, s in candidate.ranks.items()})
    return plans


def _verdict(findings: list[Finding], checked: int) -> tuple[LayerVerdict, list[Finding]]:
    reason = f"first deviation: step {findings[0].step}, {findings[0].name}"
    return LayerVerdict(status=Status.DEVIATES, checked=checked, reason=reason), findings


def _finding(step: int, plan: SamplePlan, candidate: Run) -> Finding:
    code, evidence = _explain(step, plan, candidate)
    ranks = sorted(rank for group in plan.groups for rank in group)
    return _at(step, code, ranks, {**plan.evidence, **evidence, "reason": plan.reason})


def _at(step: int, code: str, ranks: list[int] | None, evidence: dict[str, Any]) -> Finding:
    return Finding(
        layer="data",
        step=step,
        phase=Phase.DATA,
        name="sample_ids",
        site="input",
        ranks=ranks,
        evidence=evidence,
        cause=_causes.cause(code),
        next=_causes.advice(code),
    )


def _explain(step: int, plan: SamplePlan, candidate: Run) -> tuple[str, dict[str, Any]]:
    """Return the cause that the numbers of a step prove, and what more they say."""
    numbers = plan.evidence
    repeated = repeats_step(candidate, step)
    if repeated is not None:
        return "data.epoch_order", {"same_as_step": repeated}
    held = {rank: multiset(steps[step]) for rank, steps in sorted(candidate.ranks.items())}
    within = sum(count - 1 for counter in held.values() for count in counter.values() if count > 1)
    if numbers.get("on_several_ranks", 0):
        sizes = {counter.total() for counter in held.values()}
        if not numbers["missing"] and len(sizes) == 1 and _seen_before(candidate, step, held):
            return "data.padded", {"repeated": numbers["not_in_control"]}
        if len(plan.groups) == 1:
            return "data.overlap", {}
        return "data.sampler_differs", {}
    if within and numbers["not_in_control"]:
        return "data.workers_copy", {"repeated_within_a_rank": within}
    if numbers["missing"] and not numbers["not_in_control"]:
        return "data.dropped", {}
    if not numbers["missing"] and _seen_before(candidate, step, held):
        return "data.padded", {"repeated": numbers["not_in_control"]}
    return "data.other_samples", {}


def repeats_step(run: Run, step: int) -> int | None:
    """Return an earlier step in which every rank held the same samples in the same order, or None."""
    now = {rank: ordered_ids(steps[step]) for rank, steps in run.ranks.items()}
    if not any(len(ids) > 1 for ids in now.values()):
        return None
    for earlier in run.complete_steps:
        if earlier >= step:
            return None
        if all(np.array_equal(ordered_ids(run.ranks[rank][earlier]), ids) for rank, ids in now.items()):
            return earlier
    return None


def ordered_ids(step: RankStep) -> np.ndarray:
    """Return the identities of a rank's training samples in the order in which they came, (n,) uint64."""
    rows = [row.ids for row in step.samples if row.training]
    return np.concatenate(rows) if rows else np.zeros(0, dtype=np.uint64)


def _seen_before(run: Run, step: int, held: dict[int, Pieces]) -> bool:
    """Whether all that a step holds too often was there before: in an earlier step, or in this one already."""
    now = joined(held.values())
    before: set[tuple[int, int, int, int]] = set()
    for steps in run.ranks.values():
        for earlier in run.complete_steps:
            if earlier < step:
                before |= set(multiset(steps[earlier]))
    return any(count > 1 or piece in before for piece, count in now.items())


def _copies(candidate: Run, plans: dict[int, SamplePlan]) -> Finding | None:
    """Find ranks that average gradients over copies of the same samples: no fault in the numbers, all in the data."""
    if wrapper_of(candidate) != "DistributedDataParallel" or candidate.world_size < 2:
        return None
    if not all(plan.placement == "Replicate" for plan in plans.values()):
        return None
    first = min(plans)
    return _at(first, "data.overlap", sorted(candidate.ranks), {"placement": "Replicate", "steps": len(plans)})


def _fewer_steps(control: Run, candidate: Run) -> Finding | None:
    """Find samples that a whole run never came to, or went through again: its last steps have no counterpart."""
    if not (_ran_to_its_end(control) and _ran_to_its_end(candidate)):
        return None
    num_ours, num_theirs = len(control.complete_steps), len(candidate.complete_steps)
    if num_ours == num_theirs:
        return None
    longer = control if num_ours > num_theirs else candidate
    step = min(num_ours, num_theirs)
    held = joined(multiset(steps[step]) for steps in longer.ranks.values() if step in steps)
    if not held:
        return None
    code = "data.dropped" if longer is control else "data.more_steps"
    evidence = {"control_steps": num_ours, "candidate_steps": num_theirs, "samples_of_the_step": held.total()}
    return _at(step, code, None, evidence)


def _ran_to_its_end(run: Run) -> bool:
    facts = run.trial.facts
    return (
        facts.status is TrialStatus.COMPLETED
        and facts.stop_after_steps is None
        and len(run.ranks) == run.world_size
        and all(rank.facts.status is RankStatus.FINISHED for rank in run.trial.ranks)
    )


def _nothing_in_common(control: Run, candidate: Run, plans: dict[int, SamplePlan]) -> bool:
    """Whether no sample of the whole run has a counterpart, and no rank shares one with another."""
    if any(plan.evidence.get("on_several_ranks", 0) for plan in plans.values()):
        return False
    wanted: Pieces = Counter()
    held: Pieces = Counter()
    ours = control.ranks[min(control.ranks)]
    for step in plans:
        wanted |= multiset(ours[step])
        for steps in candidate.ranks.values():
            held |= multiset(steps[step])
    return not wanted & held
