"""The numerics layer: step by step, in the order of computation; the first deviation is the finding."""

from dataclasses import replace
from typing import Any

from ddparity.trace import Event, Site

from . import _backward, _forward, _loss, _parameters, _update
from ._context import StepContext, Tally
from ._floors import Floors, Measured
from ._plan import ReductionPlan, SamplePlan
from ._recording import in_float64, without_dropout
from ._run import Run
from ._steps import begins_anew, context_of, cut_short, floors_of, steps_of
from ._verdict import Finding, LayerVerdict, Status

_MAX_FINDINGS = 200


def judge(
    control: Run, candidate: Run, measured: Measured | None = None, tally: Tally | None = None
) -> tuple[LayerVerdict, list[Finding], dict[str, Any]]:
    """Hold a candidate's numbers against the control's.

    Args:
        control: The control.
        candidate: The candidate.
        measured: What rounding makes of the control, where that was measured.
        tally: Collects what was compared, for those who want more of it than the findings.

    Returns:
        The verdict, the findings (the first is the first deviation, the others follow from it) and the merge plan.
    """
    tally = tally or Tally()
    tally.lost_ties = _ties(control) - _ties(candidate)
    tally.broadcasts_buffers = any(event.data.get("broadcast_buffers") for event in candidate.events(Event.WRAP))
    floors = replace(floors_of(control, candidate), measured=measured or Measured())
    steps = steps_of(control, candidate)
    findings: list[Finding] = []
    plans: dict[int, tuple[SamplePlan, ReductionPlan]] = {}
    data_lost: int | None = None
    for step in steps:
        if begins_anew(step, control, candidate):
            floors, tally.drift = replace(floors, since=step), 0.0
        ctx = context_of(step, control, candidate, replace(floors, upstream=tally.drift), tally)
        judged = bool(ctx.control.digests.get(Site.SYNCED_GRADIENT) or ctx.control.digests.get(Site.ACTIVATION))
        if data_lost is not None:
            ctx = replace(ctx, samples=replace(ctx.samples, placement="Unproved"))
        elif judged and not ctx.samples.proved and cut_short(candidate, step):
            judged = False
        elif judged and not ctx.samples.proved:
            data_lost = step
        elif ctx.floors.drifted(step):
            ctx = replace(ctx, samples=replace(ctx.samples, placement="Unproved"))
            tally.hidden.add(step)
        if judged:
            plans[step] = (ctx.samples, ctx.reduction)
        found = _judge_step(ctx)
        if judged and not found:
            tally.micro_batches.add(ctx.micro_batches)
        if judged and ctx.floors.hides(step):
            tally.hidden.add(step)
        findings += found
        if len(findings) > _MAX_FINDINGS or (found and findings and step > (findings[0].step or 0)):
            break
    for finding in findings[1:]:
        finding.follows = 0
    verdict = _verdict(findings, tally, floors, steps, data_lost, plans)
    if verdict.status is Status.INCONCLUSIVE:
        verdict.reason += _settled_by(control, candidate, tally, floors, data_lost)
    return verdict, findings, _describe(plans, tally)


def _ties(run: Run) -> set[str]:
    """Return the parameters that several modules share."""
    return {str(name) for event in run.events(Event.MODEL) for name in event.data.get("ties", {})}


def _judge_step(ctx: StepContext) -> list[Finding]:
    found = _forward.initial_parameters(ctx) + _update.initial_buffers(ctx)
    losses: list[Finding] = []
    if ctx.comparable:
        found += _forward.activations(ctx)
    if ctx.comparable:
        losses = _loss.loss(ctx) if ctx.control.passes else []
    gradients = list[Finding]() if _overflows(ctx) else _backward.gradients(ctx)
    if losses and gradients and _scale_only(losses[0], gradients[0]):
        gradients[0].evidence["loss_factor"] = losses[0].evidence["candidate"] / losses[0].evidence["control"]
        found += gradients + losses
    else:
        found += losses + gradients
    if ctx.comparable:
        found += _update.clipping(ctx)
    found += _update.hyper_parameters(ctx)
    updated = _parameters.parameters(ctx)
    found += updated + _parameters.left_parameters(ctx, {finding.name for finding in updated})
    found += _update.optimizer_state(ctx)
    found += _update.buffers(ctx)
    return ctx.in_order(found)


def _overflows(ctx: StepContext) -> bool:
    """Whether the control's gradient scaler skipped an update: infinities tell nothing but that."""
    return any(event.name == _update.SKIPPED for event in ctx.control.updates)


def _scale_only(loss: Finding, gradient: Finding) -> bool:
    """Whether the loss is off by the very factor that every gradient is off by: then the gradients tell the story."""
    factor = gradient.evidence.get("common_factor")
    if factor is None or not loss.evidence["control"] or gradient.floor is None:
        return False
    ratio = loss.evidence["candidate"] / loss.evidence["control"]
    return abs(ratio / factor - 1.0) <= 8 * gradient.floor.value


def _verdict(
    findings: list[Finding],
    tally: Tally,
    floors: Floors,
    steps: list[int],
    data_lost: int | None,
    plans: dict[int, tuple[SamplePlan, ReductionPlan]],
) -> LayerVerdict:
    if findings:
        first = findings[0]
        reason = f"first deviation: step {first.step}, {first.phase}, {first.name}"
        return LayerVerdict(status=Status.DEVIATES, checked=tally.checked, reason=reason)
    reason = _inconclusive(tally, floors, steps, data_lost, plans)
    if reason:
        return LayerVerdict(status=Status.INCONCLUSIVE, checked=tally.checked, reason=reason)
    judged = sorted(plans)
    reason = f"{tally.checked} comparisons over steps {', '.join(map(str, judged))} within the floor"
    if tally.hidden:
        reason += f"; from step {min(tally.hidden)} on rounding may hide faults"
    if tally.unproved:
        reason += f"; not compared: {', '.join(sorted(tally.unproved)[:5])}"
    return LayerVerdict(status=Status.PASS, checked=tally.checked, reason=reason)


def _inconclusive(
    tally: Tally,
    floors: Floors,
    steps: list[int],
    data_lost: int | None,
    plans: dict[int, tuple[SamplePlan, ReductionPlan]],
) -> str:
    if not steps or not plans:
        return "no training step was recorded whole on both sides"
    if data_lost is not None:
        reason = plans[data_lost][0].reason
        return f"from step {data_lost} on the samples are not the control's ({reason}); ranks agree among themselves"
    if tally.random is not None:
        return f"random masks differ from {tally.random} on; what comes after it cannot be held against the control"
    if tally.hidden >= set(plans) and floors.hides(floors.since):
        return f"nothing above the floor, but the floor of {floors.dtype} hides faults"
    if tally.hidden >= set(plans):
        return f"nothing above the floor, but what parameters were off by at step {min(plans)} already hides faults"
    if tally.checked == 0:
        return "nothing could be compared"
    return ""


def _settled_by(control: Run, candidate: Run, tally: Tally, floors: Floors, data_lost: int | None) -> str:
    """Return the commands that answer what stayed open."""
    if data_lost is not None or not tally.checked:
        return ""
    if tally.random is not None:
        return f". To settle it: {without_dropout(control, candidate)}"
    if floors.dtype != "float64" and tally.hidden:
        return f". To settle it: {in_float64(control, candidate)}"
    return ""


def _describe(plans: dict[int, tuple[SamplePlan, ReductionPlan]], tally: Tally) -> dict[str, Any]:
    if not plans:
        return {"proved": False, "reason": "no step to plan"}
    first = min(plans)
    samples, reduction = plans[first]
    plan = {
        "samples": samples.placement,
        "parts": samples.groups,
        "foreign_ranks": samples.foreign,
        "reduction": reduction.observed,
        "weight": reduction.weight,
        "wrapper": reduction.wrapper or None,
        "proved": samples.proved and reduction.proved,
        "reason": samples.reason or ("" if reduction.proved else "gradients do not follow one reduction"),
        "not_compared": dict(sorted(tally.unproved.items())[:50]),
        "steps": sorted(plans),
    }
    return {key: value for key, value in plan.items() if value not in ("", [], {}, None)}
