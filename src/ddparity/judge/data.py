"""The data layer: which process got which sample, when, and in which form.

A trial's loaders are audited on their own; a comparison also holds the samples of each training step and of each
evaluation against the control's.
"""

from ddparity.trace import Trial

from ._data_audit import Audit
from ._data_eval import evaluations, judge_evaluations, judge_split
from ._data_metric import judge_metrics
from ._data_order import audit_batches, audit_labels, audit_order, audit_split
from ._data_passes import Pass, passes_of
from ._data_rng import NAME as RNG
from ._data_rng import audit_streams
from ._data_shards import audit_shares
from ._data_steps import judge_steps
from ._plan import WRAPPERS
from ._run import Run
from ._verdict import Finding, LayerVerdict, Phase, Status


def audit_trial(trial: Trial, *, passes: list[Pass] | None = None) -> list[Audit]:
    """Look at the data of one trial alone: shares, coverage, order, batches, split, random streams."""
    passes = passes_of(trial) if passes is None else passes
    reduces = _reduces(trial)
    audits = audit_streams(trial)
    for one in passes:
        audits += audit_shares(one, reduces=reduces)
        audits += audit_batches(one, trial.facts.status)
        audits += audit_labels(one)
    for key in dict.fromkeys(one.key for one in passes):
        audits += audit_order([one for one in passes if one.key == key])
    return audits + audit_split(passes)


def judge(control: Run, candidate: Run, parted: int | None = None) -> tuple[LayerVerdict, list[Finding]]:
    """Judge a candidate's data; the findings come in the order in which they happened.

    Args:
        control: The control.
        candidate: The candidate.
        parted: Training step from which on the models differ, if they do: their metrics do from then on.
    """
    steps, findings = judge_steps(control, candidate)
    held = evaluations(control, candidate)
    num_evaluations, more = judge_evaluations(held)
    num_metrics, metrics = judge_metrics(control, candidate, held, more, parted)
    audits = [audit for audit in audit_trial(candidate.trial) if not _refuted(audit, steps)]
    alone = [audit.finding for audit in audits if audit.finding is not None and audit.finding.phase is not Phase.EVAL]
    findings = _in_order([*alone, *findings, *judge_split(candidate), *more, *metrics])
    counts = (num_evaluations, num_metrics)
    return _verdict(steps, counts, audits, findings), findings


def _refuted(audit: Audit, steps: LayerVerdict) -> bool:
    """Whether an audit takes for an overlap what the control trains on as well, as if drawn with replacement."""
    return (
        steps.status is Status.PASS
        and audit.finding is not None
        and audit.finding.cause.code == "data.sampler_differs"
        and audit.finding.phase is Phase.DATA
    )


def _reduces(trial: Trial) -> bool:
    """Whether a wrapper averages the ranks' gradients."""
    events = trial.ranks[0].events if trial.ranks else []
    return any(event.kind == "wrap" and event.name in WRAPPERS for event in events)


def _in_order(findings: list[Finding]) -> list[Finding]:
    """Sort findings by when they happened; of those that say the same of the same step keep the first."""

    def when(finding: Finding) -> tuple[float, bool, bool]:
        step = -1.0 if finding.step is None else float(finding.step)
        # What is evaluated at step n comes after n steps: before step n. Random streams come before what they make.
        return step, finding.phase is not Phase.EVAL, finding.name != RNG

    found: dict[tuple[int | None, str, str], Finding] = {}
    for finding in sorted(findings, key=when):
        found.setdefault((finding.step, finding.phase, finding.name), finding)
    return list(found.values())


def _verdict(
    steps: LayerVerdict, counts: tuple[int, int], audits: list[Audit], findings: list[Finding]
) -> LayerVerdict:
    settled = [audit for audit in audits if audit.status in (Status.PASS, Status.DEVIATES)]
    checked = steps.checked + sum(counts) + len(settled)
    if findings:
        first = findings[0]
        reason = f"first deviation: step {first.step}, {first.phase}, {first.name}"
        return LayerVerdict(status=Status.DEVIATES, checked=checked, reason=reason)
    parts = [steps.reason]
    if counts[0]:
        parts.append(
            f"so are the samples of {_some(counts[0], 'evaluation')}, and {_some(counts[1], 'metric')} of them"
        )
    if settled:
        parts.append(f"{len(settled)} audits of the loaders found nothing")
    if steps.status is Status.NOT_TESTED and (counts[0] or settled):
        return LayerVerdict(status=Status.INCONCLUSIVE, checked=checked, reason="; ".join(parts))
    return LayerVerdict(status=steps.status, checked=checked, reason="; ".join(parts))


def _some(num: int, noun: str) -> str:
    return f"{num} {noun}" if num == 1 else f"{num} {noun}s"
