"""What happens between gradients and the next step, but for the parameters: clipping, settings, state, buffers."""

import math
from typing import Any

from ddparity.digest import distance, relative_error
from ddparity.trace import Event, EventRow, Site

from . import _causes
from ._context import StepContext
from ._logical import merge_parameter
from ._parameters import amplified_share, is_scale_free
from ._verdict import Finding, Phase

SKIPPED = "skipped"
"""Name of an update that a gradient scaler left out because of infinities."""
_NOT_HYPER = {"foreach", "fused", "capturable", "differentiable", "initial_lr", "decoupled_weight_decay"}
_NORMALISED = {"momentum_buffer", "acc_delta"}
"""State of optimizers that normalise gradients in which they keep normalised ones."""
_EXACT = 1e-9


def clipping(ctx: StepContext) -> list[Finding]:
    """Compare the norms that gradients were clipped with, then what clipping and unscaling left of the gradients."""
    if ctx.left.mended:  # each rank clips what is its own
        return []
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
    return findings + _skipped(ctx) + _counted(ctx)


def _skipped(ctx: StepContext) -> list[Finding]:
    """Find updates that some ranks left out where the control made them, or the other way round."""
    wanted = [event.name == SKIPPED for event in ctx.control.updates]
    found = {rank: [event.name == SKIPPED for event in step.updates] for rank, step in sorted(ctx.candidate.items())}
    bad = [rank for rank, made in found.items() if any(a != b for a, b in zip(wanted, made, strict=False))]
    ctx.tally.checked += 1
    if not bad:
        return []
    return [
        ctx.finding(
            Phase.OPTIMIZER,
            "loss_scale",
            "scaler",
            _causes.cause("scaler.skipped"),
            ranks=bad,
            ranks_differ=len(bad) < len(found),
            after=0,
            skipped_in_control=any(wanted),
            skipped_on=[rank for rank, made in found.items() if any(made)],
        )
    ]


def _counted(ctx: StepContext) -> list[Finding]:
    """Find optimizers that have counted other numbers of steps, by which Adam and its kin correct their moments."""
    for rank, step in sorted(ctx.candidate.items()):
        for number, (theirs, ours) in enumerate(zip(ctx.control.updates, step.updates, strict=False)):
            wanted, found = theirs.data.get("counted", {}), ours.data.get("counted", {})
            ctx.tally.checked += bool(wanted and found)
            other = [count for count in found if count not in wanted]
            if wanted and other:
                values = {"control": [int(count) for count in wanted], "candidate": [int(count) for count in found]}
                because = _causes.cause("opt.step_count")
                site = f"{Site.OPTIMIZER_STATE}:step"
                name = str(found[other[0]])
                return [ctx.finding(Phase.OPTIMIZER, name, site, because, ranks=[rank], after=number, **values)]
    return []


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
        if part in _NORMALISED and is_scale_free(ctx):  # off by up to twice its largest element, where it is off
            scale = max(
                scale, max(abs(control.minimum), abs(control.maximum)) * amplified_share(ctx, control) / floor.value
            )
        error, spread = distance(logical.digest, control) / scale, logical.spread / scale
        if ctx.left.mended and spread > floor.value:  # each rank's own, of its own gradient
            continue
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


def initial_buffers(ctx: StepContext) -> list[Finding]:
    """Compare buffers as they were before the first step of a window; where a wrapper broadcasts them, rank 0's."""
    return _buffers(ctx, Site.BUFFER_AT_START, "init.buffer_differs", "init.buffer_ranks_differ")


def buffers(ctx: StepContext) -> list[Finding]:
    """Compare buffers as the step left them, before a wrapper broadcasts rank 0's."""
    return _buffers(ctx, Site.BUFFER, "buffer.differs", "buffer.ranks_differ")


def _buffers(ctx: StepContext, site: Site, alike: str, apart: str) -> list[Finding]:
    """Hold buffers against the control's, and the ranks' against each other.

    A running mean follows the bias in front of its norm, which rounding alone may move: it is off by no more than that.
    """
    findings: list[Finding] = []
    at_start = site == Site.BUFFER_AT_START
    floor = ctx.floors.at(ctx.step, factor=2.0)
    for (name, part), rows in ctx.control.digests.get(site, {}).items():
        held = ctx.held(site, name, part)
        if at_start and ctx.tally.broadcasts_buffers:
            held = dict(list(held.items())[:1])
        logical = merge_parameter(held)
        control = rows[-1].digest
        if logical is None or logical.reason or logical.digest.shape != control.shape:
            continue
        by_itself = control.dtype.startswith(("int", "uint")) or (at_start and ctx.step == ctx.floors.since > 0)
        ctx.tally.checked += 1
        scale = max(control.norm, 1e-30)
        spread, error = logical.spread / scale, relative_error(logical.digest, control)
        allowed = floor.value + ctx.tally.moved.get(tuple(control.shape), 0.0) / scale
        if spread > floor.value or (ctx.comparable and error > allowed and not by_itself):
            differ = spread > floor.value
            what = "ranks_differ" if differ else "differs"
            because = _causes.cause(
                f"init.buffer_{what}" if at_start else f"buffer.{what}", _causes.PROVED if at_start else _causes.LIKELY
            )
            numbers = {"relative_error": error, "spread_over_ranks": spread}
            ranks = list(logical.ranks) or None
            findings.append(
                ctx.finding(
                    Phase.INIT if at_start else Phase.BUFFER,
                    name,
                    site,
                    because,
                    floor=floor,
                    ranks=ranks,
                    ranks_differ=differ,
                    after=0 if at_start else None,
                    **numbers,
                )
            )
    return findings
