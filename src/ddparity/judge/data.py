"""The data layer, as far as a comparison sees it: are the samples of each step the control's, once each?"""

from collections import Counter

from . import _causes
from ._plan import Pieces, SamplePlan, multiset, plan_samples, wrapper_of
from ._run import Run
from ._verdict import Finding, LayerVerdict, Phase, Status


def judge(control: Run, candidate: Run) -> tuple[LayerVerdict, list[Finding]]:
    """Compare, for each training step, the multiset of sample identities over all ranks with the control's."""
    steps = sorted(set(control.complete_steps) & set(candidate.complete_steps))
    ours = control.ranks[min(control.ranks)] if control.ranks else {}
    plans: dict[int, SamplePlan] = {}
    for step in steps:
        if ours[step].batches or any(s[step].batches for s in candidate.ranks.values()):
            plans[step] = plan_samples(ours[step], {r: s[step] for r, s in candidate.ranks.items()})
    if not plans:
        return LayerVerdict(status=Status.NOT_TESTED, reason="no sample entered a model on both sides"), []
    bad = [step for step, plan in plans.items() if not plan.proved]
    if not bad:
        copies = _copies(candidate, plans)
        if copies is not None:
            return _verdict([copies], len(plans))
        reason = f"the samples of {len(plans)} steps are the control's ({plans[min(plans)].placement})"
        return LayerVerdict(status=Status.PASS, checked=len(plans), reason=reason), []
    if _nothing_in_common(control, candidate, plans):
        reason = _causes.cause("data.unmatched").text
        return LayerVerdict(status=Status.INCONCLUSIVE, checked=len(plans), reason=reason), []
    first = _finding(bad[0], plans[bad[0]])
    rest = [_finding(step, plans[step]) for step in bad[1:10]]
    return _verdict([first, *rest], len(plans))


def _verdict(findings: list[Finding], checked: int) -> tuple[LayerVerdict, list[Finding]]:
    reason = f"first deviation: step {findings[0].step}, {findings[0].name}"
    return LayerVerdict(status=Status.DEVIATES, checked=checked, reason=reason), findings


def _finding(step: int, plan: SamplePlan) -> Finding:
    overlap = plan.evidence.get("on_several_ranks", 0) > 0
    code = "data.overlap" if overlap else "data.other_samples"
    return Finding(
        layer="data",
        step=step,
        phase=Phase.DATA,
        name="sample_ids",
        site="input",
        ranks=sorted(rank for group in plan.groups for rank in group),
        ranks_differ=False,
        evidence={**plan.evidence, "reason": plan.reason},
        cause=_causes.cause(code),
        next=_causes.advice(code),
    )


def _copies(candidate: Run, plans: dict[int, SamplePlan]) -> Finding | None:
    """Find ranks that average gradients over copies of the same samples: no fault in the numbers, all in the data."""
    if wrapper_of(candidate) != "DistributedDataParallel" or candidate.world_size < 2:
        return None
    if not all(plan.placement == "Replicate" for plan in plans.values()):
        return None
    first = min(plans)
    finding = _finding(first, plans[first])
    finding.cause = _causes.cause("data.overlap")
    finding.evidence = {"placement": "Replicate", "steps": len(plans)}
    return finding


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
