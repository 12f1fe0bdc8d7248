"""Comparing two trials: each layer on its own, then the verdict."""

import shlex
from pathlib import Path

from . import communication, data, memory, numerics
from ._next_trials import plan_between
from ._run import Run, load_run
from ._stale import check_fresh
from ._varied import varied_facts
from ._verdict import Finding, LayerVerdict, Status, Verdict


def compare_trials(control_dir: Path, candidate_dir: Path, *, allow_stale: bool = False) -> Verdict:
    """Hold a candidate against a control.

    Args:
        control_dir: Folder of the control trial, with ``trial.json`` and one rank.
        candidate_dir: Folder of the candidate trial.
        allow_stale: Judge although the code changed between the two; the verdict notes it.

    Raises:
        TraceError: If a file of either trial is missing or corrupt.
        StaleControl: If the code changed between the two, unless ``allow_stale``.
    """
    control, candidate = load_run(control_dir), load_run(candidate_dir)
    notes = check_fresh(control.trial, candidate.trial, allow_stale=allow_stale)
    numbers, found, plan = numerics.judge(control, candidate)
    layers = {"numerics": _trusted(numbers, control)}
    findings = list(found)
    for name, layer in (("data", data), ("memory", memory), ("communication", communication)):
        layers[name], more = layer.judge(control, candidate)
        findings += _following(more, len(findings))
    for finding in findings:
        finding.next = f"{finding.next} Then: {_next_commands(control, candidate)}"
    reasons = control.partial_reasons() + candidate.partial_reasons()
    varied, variables = varied_facts(control.trial, candidate.trial)
    names = [variable.name for variable in variables]
    return Verdict(
        control=control.trial.facts.id,
        candidate=candidate.trial.facts.id,
        partial=bool(reasons),
        partial_reasons=reasons,
        varied=varied,
        confounded=len(names) > 1,
        variable=names[0] if len(names) == 1 else None,
        variables=names,
        next_trials=plan_between(control.trial, candidate.trial).commands if len(names) > 1 else [],
        notes=notes,
        merge_plan=plan,
        layers=layers,
        findings=findings,
    )


def _next_commands(control: Run, candidate: Run) -> str:
    """Return the commands that record the candidate again and hold it against the same control."""
    facts = candidate.trial.facts
    name = f"{facts.name}-again"
    again = f"ddparity record --name {name} -- {shlex.join(facts.command)}"
    return f"{again} && ddparity compare {control.trial.facts.name} {name}"


def _following(findings: list[Finding], first: int) -> list[Finding]:
    for finding in findings[1:]:
        finding.follows = first
    return findings


def _trusted(verdict: LayerVerdict, control: Run) -> LayerVerdict:
    """Withhold a verdict that rests on a control which failed its proof, or is no control at all."""
    proof = control.trial.facts.proof
    if proof is not None and proof.status == "FAILED":
        reason = f"the control failed its proof ({proof.reason}); repair the single-device path first"
        return LayerVerdict(status=Status.INCONCLUSIVE, checked=verdict.checked, reason=reason)
    if control.world_size > 1:
        reason = f"the control ran on {control.world_size} processes; record one with --control on a single one"
        return LayerVerdict(status=Status.INCONCLUSIVE, checked=verdict.checked, reason=reason)
    return verdict
