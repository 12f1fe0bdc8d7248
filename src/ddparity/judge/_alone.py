"""What a trial says of itself, layer by layer, without a control to hold it against."""

from pathlib import Path

import msgspec

from . import communication, data, memory
from ._prove import nonfinite
from ._run import Run, load_run
from ._verdict import Finding, LayerVerdict, Status

_PROOFS = {"PROVED": Status.PASS, "FAILED": Status.DEVIATES}


class TrialCheck(msgspec.Struct, kw_only=True):
    """What the layers of one trial come to without a control.

    Attributes:
        trial: Id of the trial.
        partial: Whether a part of the recording is missing.
        partial_reasons: What is missing.
        layers: A verdict for each layer, as in ``compare --json``.
        findings: Every deviation, in the order of the layers, and within each of when it showed.
    """

    schema: int = 1
    trial: str
    partial: bool = False
    partial_reasons: list[str] = []
    layers: dict[str, LayerVerdict]
    findings: list[Finding] = []


def check_trial(folder: Path) -> TrialCheck:
    """Examine one trial by itself.

    Raises:
        TraceError: If a file of the trial is missing or corrupt.
    """
    return check_run(load_run(folder))


def check_run(run: Run) -> TrialCheck:
    """Examine one trial that was read already."""
    layers = {"numerics": _numbers(run)}
    findings: list[Finding] = []
    layers["data"], found = _data(run)
    findings += _following(found, len(findings))
    for name, layer in (("memory", memory), ("communication", communication)):
        layers[name], found = layer.judge(None, run)
        findings += _following(found, len(findings))
    memory.blame(findings)
    reasons = run.partial_reasons()
    return TrialCheck(
        trial=run.trial.facts.id,
        partial=bool(reasons),
        partial_reasons=reasons,
        layers=layers,
        findings=findings,
    )


def _numbers(run: Run) -> LayerVerdict:
    """Numbers are right or wrong against a control only; a control has been held against itself."""
    proof = run.trial.facts.proof
    if proof is not None and proof.status in _PROOFS:
        reason = proof.reason or "run twice, it repeats itself"
        return LayerVerdict(status=_PROOFS[proof.status], checked=1, reason=reason)
    if reason := nonfinite(run):
        return LayerVerdict(status=Status.INCONCLUSIVE, checked=1, reason=f"it holds {reason}")
    return LayerVerdict(status=Status.NOT_TESTED, reason="numbers are held against a control's: compare")


def _data(run: Run) -> tuple[LayerVerdict, list[Finding]]:
    audits = data.audit_trial(run.trial)
    settled = [audit for audit in audits if audit.status in (Status.PASS, Status.DEVIATES)]
    order = (Status.DEVIATES, Status.INCONCLUSIVE, Status.PASS)
    status = next((each for each in order if any(audit.status is each for audit in audits)), Status.NOT_TESTED)
    reason = next((f"{audit.name}: {audit.text}" for audit in audits if audit.status is status), "")
    if status is Status.PASS:
        reason = f"{len(settled)} audit{'' if len(settled) == 1 else 's'} of the loaders found nothing"
    elif status is Status.NOT_TESTED:
        reason = reason or "no DataLoader was iterated"
    found = [audit.finding for audit in audits if audit.finding is not None]
    return LayerVerdict(status=status, checked=len(settled), reason=reason), found


def _following(findings: list[Finding], first: int) -> list[Finding]:
    for finding in findings[1:]:
        finding.follows = first
    return findings
