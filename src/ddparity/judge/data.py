"""The data layer: which process got which sample, when, and in which form.

A comparison holds the samples of each training step and of each evaluation against the control's.
"""

from ._data_eval import evaluations, judge_evaluations
from ._data_steps import judge_steps
from ._run import Run
from ._verdict import Finding, LayerVerdict, Phase, Status


def judge(control: Run, candidate: Run) -> tuple[LayerVerdict, list[Finding]]:
    """Judge a candidate's data; the findings come in the order in which they happened."""
    steps, findings = judge_steps(control, candidate)
    num_evaluations, more = judge_evaluations(evaluations(control, candidate))
    findings = sorted([*findings, *more], key=_when)
    return _verdict(steps, num_evaluations, findings), findings


def _when(finding: Finding) -> tuple[float, bool]:
    step = -1.0 if finding.step is None else float(finding.step)
    return step, finding.phase is not Phase.EVAL  # what is evaluated at step n comes after n steps: before step n


def _verdict(steps: LayerVerdict, num_evaluations: int, findings: list[Finding]) -> LayerVerdict:
    checked = steps.checked + num_evaluations
    if findings:
        first = findings[0]
        reason = f"first deviation: step {first.step}, {first.phase}, {first.name}"
        return LayerVerdict(status=Status.DEVIATES, checked=checked, reason=reason)
    if not num_evaluations:
        return steps
    evaluated = f"{num_evaluations} evaluation{'' if num_evaluations == 1 else 's'}"
    if steps.status is Status.PASS:
        reason = f"{steps.reason}; so are those of {evaluated}"
        return LayerVerdict(status=Status.PASS, checked=checked, reason=reason)
    reason = f"the samples of {evaluated} are the control's; training: {steps.reason}"
    return LayerVerdict(status=Status.INCONCLUSIVE, checked=checked, reason=reason)
