"""What happens between gradients and the next step: clipping, loss scale, hyper-parameters, update, state, buffers."""

import math
from typing import Any

from ddparity.digest import Digest, distance, relative_error, same
from ddparity.trace import DigestRow, Event, EventRow, Site

from . import _causes
from ._context import StepContext
from ._logical import Logical, merge_parameter
from ._verdict import Finding, Floor, Phase

_SCALE_FREE = ("Adam", "RMSprop", "Adagrad", "Adadelta", "Lion", "Adafactor", "Muon", "Rprop")
_NOT_HYPER = {"foreach", "fused", "capturable", "differentiable", "initial_lr", "decoupled_weight_decay"}
_NORMALISED = {"momentum_buffer", "acc_delta"}
"""State of optimizers that normalise gradients in which they keep normalised ones."""
_EXACT = 1e-9


def clipping(ctx: StepContext) -> list[Finding]:
    """Compare the norms that gradients were clipped with, then what clipping and unscaling left of the gradients."""
    wanted = ctx.control.events.get(Event.CLIP, [])
    floor = ctx.floors.at(ctx.step, factor=4.0)
    for rank, step in sorted(ctx.candidate.items()):
        found = step.events.get(Event.CLIP, [])
        if not step.reached(Site.STEP_GRADIENT):
            continue
        due = wanted
        if len(found) != len(wanted):  # a call that only measured the norm may stand on one side alone
            due, found = [e for e in wanted if _has_cut(e)], [e for e in found if _has_cut(e)]
        if len(found) != len(due):
            ctx.tally.checked += 1
            numbers = {"control_calls": len(wanted), "candidate_calls": len(step.events.get(Event.CLIP, []))}
            return [
                ctx.finding(Phase.CLIP, "grad_norm", "clip", _causes.cause("clip.missing"), ranks=[rank], **numbers)
            ]
        for theirs, ours in zip(due, found, strict=True):
            if theirs.value is None or ours.value is None:
                continue
            ctx.tally.checked += 1
            if abs(ours.value - theirs.value) > floor.value * max(abs(theirs.value), 1e-30):
                return [_clip_finding(ctx, theirs, ours)]
    return _after_clipping(ctx)


def _has_cut(event: EventRow) -> bool:
    """Say whether a call of clipping may have changed a gradient: its norm is unknown, no number or over the limit."""
    limit = event.data.get("max_norm")
    return event.value is None or not isinstance(limit, int | float) or not event.value <= limit


def _clip_finding(ctx: StepContext, theirs: EventRow, ours: EventRow) -> Finding:
    by_rank = {str(r): [e.value for e in s.events.get(Event.CLIP, [])] for r, s in sorted(ctx.candidate.items())}
    differ = len({str(values) for values in by_rank.values()}) > 1
    assert theirs.value is not None
    assert ours.value is not None
    factor = ours.value / theirs.value if theirs.value else math.inf
    scales = [e.value for e in ctx.control.events.get(Event.UNSCALE, []) if e.value]
    if scales and abs(factor / scales[0] - 1.0) < 1e-3:
        because = _causes.cause("clip.scaled_gradients", detail=f"The factor is the loss scale, {scales[0]:g}.")
    elif differ:
        because = _causes.cause("clip.local_norm", _causes.LIKELY)
    else:
        because = _causes.cause("clip.norm", _causes.LIKELY)
    return ctx.finding(
        Phase.CLIP,
        "grad_norm",
        "clip",
        because,
        floor=ctx.floors.at(ctx.step, factor=4.0),
        ranks_differ=differ,
        after=ctx.control.num_updates_before(theirs.seq),
        control=theirs.value,
        candidate=ours.value,
        factor=factor,
        by_rank=by_rank,
    )


def _after_clipping(ctx: StepContext) -> list[Finding]:
    floor = ctx.floors.at(ctx.step, factor=4.0)
    for (name, _), rows in ctx.control.digests.get(Site.STEP_GRADIENT, {}).items():
        held = ctx.held(Site.STEP_GRADIENT, name)
        logical = merge_parameter(held)
        if name in ctx.tally.tainted or logical is None or logical.reason:
            continue
        ctx.tally.checked += 1
        scale = max(rows[0].digest.norm * ctx.tally.cancelled.get(name, 1.0), 1e-30)
        error, spread = distance(logical.digest, rows[0].digest) / scale, logical.spread / scale
        if max(error, spread) > floor.value:
            return [
                ctx.finding(
                    Phase.CLIP,
                    "clip_coefficient",
                    Site.STEP_GRADIENT,
                    _causes.cause("clip.coefficient", _causes.LIKELY),
                    floor=floor,
                    ranks_differ=spread > floor.value,
                    after=ctx.control.update_of(name),
                    parameter=name,
                    relative_error=error,
                    spread=spread,
                )
            ]
    return []


def hyper_parameters(ctx: StepContext) -> list[Finding]:
    """Compare learning rates and the other hyper-parameters that each optimizer stepped with, and the loss scale."""
    findings = _loss_scale(ctx)
    for rank, step in sorted(ctx.candidate.items()):
        for number, (control, candidate) in enumerate(zip(ctx.control.updates, step.updates, strict=False)):
            for theirs, ours in zip(_groups([control]), _groups([candidate]), strict=False):
                ctx.tally.checked += 1
                findings += _compare_group(ctx, rank, theirs, ours, {f.name for f in findings}, number)
    return findings


def _groups(events: list[EventRow]) -> list[dict[str, Any]]:
    return [group for event in events for group in event.data.get("groups", [])]


def _compare_group(
    ctx: StepContext, rank: int, theirs: dict[str, Any], ours: dict[str, Any], known: set[str], update: int
) -> list[Finding]:
    findings: list[Finding] = []
    for key in sorted(theirs, key=lambda k: (k != "lr", k)):
        if key in _NOT_HYPER or key in known or _equal(theirs[key], ours.get(key)):
            continue
        because = _causes.cause("opt.hyper_parameter")
        if key == "lr":
            from_the_start = ctx.step == ctx.floors.since
            scaled = _scaled_rate(ctx, theirs[key], ours.get(key)) if from_the_start else ""
            because = _causes.cause("opt.lr", detail=scaled)
        values = {"control": theirs[key], "candidate": ours.get(key)}
        findings.append(ctx.finding(Phase.OPTIMIZER, key, "param_group", because, ranks=[rank], after=update, **values))
    return findings


def _scaled_rate(ctx: StepContext, control: Any, candidate: Any) -> str:
    num = ctx.num_ranks
    if num < 2 or not isinstance(candidate, (int, float)) or not _equal(candidate, control * num):
        return ""
    return f"It is the control's times {num}, the number of ranks: right where a step takes {num} times the samples."


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(_equal(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, (int, float)) and isinstance(b, (int, float)):
        return a == b or abs(a - b) <= _EXACT * max(abs(a), abs(b))
    return a == b


def _loss_scale(ctx: StepContext) -> list[Finding]:
    wanted = [e.value for e in ctx.control.events.get(Event.UNSCALE, [])]
    for rank, step in sorted(ctx.candidate.items()):
        found = [e.value for e in step.events.get(Event.UNSCALE, [])]
        for theirs, ours in zip(wanted, found, strict=False):
            ctx.tally.checked += 1
            if theirs != ours:
                because = _causes.cause("scaler.scale")
                numbers = {"control": theirs, "candidate": ours}
                return [ctx.finding(Phase.OPTIMIZER, "loss_scale", "scaler", because, ranks=[rank], **numbers)]
    return []


def parameters(ctx: StepContext) -> list[Finding]:
    """Compare parameters after the step: over the ranks, and with the control's."""
    findings: list[Finding] = []
    sharp = ctx.floors.rounding(ctx.step)
    scale_free = _is_scale_free(ctx)
    for (name, part), rows in ctx.control.digests.get(Site.PARAMETER_AFTER, {}).items():
        held = ctx.held(Site.PARAMETER_AFTER, name, part)
        control, logical = rows[-1].digest, merge_parameter(held)
        if name in ctx.tally.unplaced or not held:
            continue
        if logical is None:
            findings += _not_held(ctx, name, rows[-1])
            continue
        if logical.reason or logical.digest.shape != control.shape:
            ctx.tally.unproved.setdefault(name, logical.reason or "its shape on the ranks is not the control's")
            continue
        ctx.tally.checked += 1
        floor = ctx.floors.at(ctx.step, of=(Site.PARAMETER_AFTER, name))
        scale = max(control.norm, _rate(ctx) * ctx.tally.scales.get(name, 0.0) / _scaled_by(ctx), 1e-30)
        error, spread = distance(logical.digest, control) / scale, logical.spread / scale
        ctx.measured(Phase.OPTIMIZER, name, max(error if ctx.comparable else 0.0, spread), floor.value)
        if spread <= sharp and not ctx.comparable:
            continue
        if spread <= sharp and error > sharp and scale_free and _amplified(ctx, name, error * scale, control):
            _accept(ctx, name, error, error * scale, control)
        elif spread <= sharp and error <= floor.value:
            ctx.tally.drift = max(ctx.tally.drift, 0.0 if name in ctx.tally.tainted else error)
        else:
            findings.append(_parameter_finding(ctx, name, logical, error, spread, floor))
    return findings


def _is_scale_free(ctx: StepContext) -> bool:
    return any(word in event.name for event in ctx.control.events.get(Event.OPTIMIZER, []) for word in _SCALE_FREE)


def _amplified(ctx: StepContext, name: str, difference: float, control: Digest) -> bool:
    """Whether a difference is what an optimizer that normalises gradients makes of rounding in elements near zero.

    Such an optimizer moves every element by up to its learning rate, also one whose gradient is rounding alone. In a
    vector that may be all elements (a bias in front of a norm) or many (the key bias of an attention). In a matrix of
    n elements whose gradients agree within a floor f, elements with a gradient below x f of the mean size are about
    x f in number and off by 1/x, which adds up to n f elements; 64 n f + 16 leaves room for heavy tails and for luck.
    """
    rate = _rate(ctx) * (ctx.step + 1)
    if name in ctx.tally.tainted or len(control.shape) <= 1:
        return difference <= 2.0 * rate * math.sqrt(control.count)
    return difference <= rate * _amplified_share(ctx, control)


def _amplified_share(ctx: StepContext, control: Digest) -> float:
    floor = max(ctx.floors.rounding(ctx.step), ctx.floors.upstream)
    return math.sqrt(64.0 * control.count * floor + 16.0)


def _rate(ctx: StepContext) -> float:
    """Return the largest learning rate of the control's groups."""
    groups = _groups(ctx.control.events.get(Event.OPTIMIZER, []))
    return max((float(group.get("lr", 0.0)) for group in groups), default=0.0)


def _scaled_by(ctx: StepContext) -> float:
    """Return the loss scale that gradients were multiplied with."""
    return max((e.value for e in ctx.control.events.get(Event.UNSCALE, []) if e.value), default=1.0)


def _accept(ctx: StepContext, name: str, error: float, difference: float, control: Digest) -> None:
    """Remember that a parameter is off for rounding alone: it may not be judged by itself, or all else follows it."""
    if name in ctx.tally.tainted or len(control.shape) <= 1:
        ctx.tally.tainted.add(name)
        shape = tuple(control.shape)
        ctx.tally.moved[shape] = max(ctx.tally.moved.get(shape, 0.0), difference)
    else:
        ctx.tally.drift = max(ctx.tally.drift, error)


def _not_held(ctx: StepContext, name: str, row: DigestRow) -> list[Finding]:
    if not any(step.digests.get(Site.PARAMETER_AFTER) for step in ctx.candidate.values()):
        return []
    ctx.tally.checked += 1
    because = _causes.cause("opt.not_held")
    return [ctx.finding(Phase.OPTIMIZER, name, Site.PARAMETER_AFTER, because, control_norm=row.digest.norm)]


def _parameter_finding(
    ctx: StepContext, name: str, logical: Logical, error: float, spread: float, floor: Floor
) -> Finding:
    if spread > floor.value:
        because = _causes.cause("opt.ranks_differ")
    elif _unmoved(ctx, name):
        because = _causes.cause("opt.not_held", detail="The parameter did not move; the control's did.")
    else:
        because = _causes.cause("opt.update", _causes.LIKELY)
    return ctx.finding(
        Phase.OPTIMIZER,
        name,
        Site.PARAMETER_AFTER,
        because,
        floor=floor,
        ranks=list(logical.ranks) or None,
        ranks_differ=spread > floor.value,
        relative_error=error,
        spread_over_ranks=spread,
        candidate_norm=logical.digest.norm,
    )


def _unmoved(ctx: StepContext, name: str) -> bool:
    for step in ctx.candidate.values():
        before, after = step.rows(Site.PARAMETER, name), step.rows(Site.PARAMETER_AFTER, name)
        if not before or not after or not same(before[0].digest, after[-1].digest):
            return False
    return True


def optimizer_state(ctx: StepContext) -> list[Finding]:
    """Compare optimizer state where both recorded it."""
    findings: list[Finding] = []
    floor = ctx.floors.at(ctx.step, factor=4.0)
    for (name, part), rows in ctx.control.digests.get(Site.OPTIMIZER_STATE, {}).items():
        held = ctx.held(Site.OPTIMIZER_STATE, name, part)
        logical = merge_parameter(held)
        control = rows[-1].digest
        if (
            logical is None
            or logical.reason
            or name in ctx.tally.tainted | ctx.tally.unplaced
            or logical.digest.shape != control.shape
        ):
            continue
        ctx.tally.checked += 1
        norm = control.norm * ctx.tally.cancelled.get(name, 1.0)
        scale = max(norm, _state_scale(ctx, part, control.count))
        if part in _NORMALISED and _is_scale_free(ctx):  # off by up to twice its largest element, where it is off
            scale = max(
                scale, max(abs(control.minimum), abs(control.maximum)) * _amplified_share(ctx, control) / floor.value
            )
        error, spread = distance(logical.digest, control) / scale, logical.spread / scale
        if spread > floor.value or (ctx.comparable and error > floor.value):
            differ = spread > floor.value
            because = _causes.cause("opt.ranks_differ" if differ else "opt.state", _causes.LIKELY)
            site = f"{Site.OPTIMIZER_STATE}:{part}"
            numbers = {"relative_error": error, "spread_over_ranks": spread}
            findings.append(
                ctx.finding(Phase.OPTIMIZER, name, site, because, floor=floor, ranks_differ=differ, **numbers)
            )
    return findings


def _state_scale(ctx: StepContext, part: str, count: int) -> float:
    """Return a tenth of the mean size of this kind of state: what rounding in nearly cancelled gradients leaves."""
    found = [rows[-1].digest for (_, p), rows in ctx.control.digests[Site.OPTIMIZER_STATE].items() if p == part]
    elements = sum(d.count for d in found)
    mean = math.sqrt(math.fsum(d.sum_sq for d in found) / elements) if elements else 0.0
    return max(0.1 * mean * math.sqrt(count), 1e-30)


def buffers(ctx: StepContext) -> list[Finding]:
    """Compare buffers as the step left them, before a wrapper broadcasts rank 0's.

    A running mean follows the bias in front of its norm, which rounding alone may move: it is off by no more than that.
    """
    findings: list[Finding] = []
    floor = ctx.floors.at(ctx.step, factor=2.0)
    for (name, part), rows in ctx.control.digests.get(Site.BUFFER, {}).items():
        held = ctx.held(Site.BUFFER, name, part)
        logical = merge_parameter(held)
        control = rows[-1].digest
        if logical is None or logical.reason or logical.digest.shape != control.shape:
            continue
        counts_calls = control.dtype.startswith("int") or control.dtype.startswith("uint")
        ctx.tally.checked += 1
        scale = max(control.norm, 1e-30)
        spread, error = logical.spread / scale, relative_error(logical.digest, control)
        allowed = floor.value + ctx.tally.moved.get(tuple(control.shape), 0.0) / scale
        if spread > floor.value or (ctx.comparable and error > allowed and not counts_calls):
            differ = spread > floor.value
            because = _causes.cause("buffer.ranks_differ" if differ else "buffer.differs", _causes.LIKELY)
            numbers = {"relative_error": error, "spread_over_ranks": spread}
            ranks = list(logical.ranks) or None
            findings.append(
                ctx.finding(
                    Phase.BUFFER, name, Site.BUFFER, because, floor=floor, ranks=ranks, ranks_differ=differ, **numbers
                )
            )
    return findings
