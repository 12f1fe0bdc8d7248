"""Gradients in the order of backward: the first that deviates from the control's or between ranks."""

import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from ddparity.digest import Relation, distance, relate, scaled
from ddparity.trace import Event, Site

from . import _causes
from ._context import StepContext
from ._explain import common_factor, evidence, explain
from ._forward import calls_of, merge_activation
from ._gradients import GradientRow, measure, relative
from ._logical import merge_parameter
from ._run import RankStep
from ._verdict import Finding, Floor, Phase


def gradients(ctx: StepContext) -> list[Finding]:
    """Compare gradients with the control's and with each other; name the first parameter that deviates."""
    sharp = ctx.floors.at(ctx.step).value
    if ctx.comparable:
        _accept_kinks(ctx)
    rows = [row for name in ctx.backward_order() if (row := measure(ctx, name)) is not None]
    floor = ctx.floors.at(ctx.step)
    for row in rows:
        if row.noise:
            ctx.tally.tainted.add(row.name)
        ctx.tally.scales[row.name] = max(ctx.tally.scales.get(row.name, 0.0), row.scale)
        if row.control.norm:
            ratio = row.scale / row.control.norm
            ctx.tally.cancelled[row.name] = max(ctx.tally.cancelled.get(row.name, 1.0), ratio)
        ctx.tally.checked += 1
    own = {row.name: ctx.floors.at(ctx.step, of=(Site.SYNCED_GRADIENT, row.name)) for row in rows}
    for row in rows if ctx.tally.measured is not None else ():  # rank by rank it costs as much as judging
        if row.logical is not None and not row.noise:
            apart = max(row.error if ctx.comparable else 0.0, row.spread)
            ctx.measured(Phase.BACKWARD, row.name, apart, own[row.name].value, row.by_rank)
    how = {"comparable": ctx.comparable, "mended": ctx.left.mended}
    bad = [row for row in rows if not row.noise and _deviates(row, own[row.name].value, sharp, **how)]
    if not bad:
        return []
    loud = [row for row in rows if not row.noise]
    findings = _clipped_too_early(ctx) or _clipped_before_reduction(ctx, bad, sharp)
    findings = findings or (_clipped_by_rank(ctx, loud, floor) if ctx.comparable else [])
    factor = common_factor(loud, floor.value) if ctx.comparable else None
    for row in bad:
        because, phase = explain(ctx, row, rows, factor, sharp)
        differ = row.spread > sharp or bool(
            row.logical and row.logical.missing and len(row.logical.missing) < ctx.num_ranks
        )
        findings.append(
            ctx.finding(
                phase,
                row.name,
                Site.SYNCED_GRADIENT,
                because,
                floor=own[row.name],
                ranks=sorted(ctx.candidate) if differ else None,
                ranks_differ=differ,
                **evidence(ctx, row, factor),
            )
        )
    if not findings[0].ranks_differ and ctx.comparable:
        findings[0].evidence.update(_entry(ctx))
    return findings


def _deviates(row: GradientRow, floor: float, sharp: float, *, comparable: bool, mended: bool) -> bool:
    """Say whether a gradient is off; ranks may part where they leave the step with the control's parameters."""
    if row.missing or row.spread > sharp:
        return not mended
    reduced = row.sync_error is None or row.sync_error <= sharp
    return comparable and row.error > (floor if reduced else sharp)


def _clipped_too_early(ctx: StepContext) -> list[Finding]:
    """Find ranks that clip what a step has accumulated so far and go on, where the control clips once, at the end."""
    early = {rank: found for rank, step in ctx.candidate.items() if (found := _clips_before_the_end(step))}
    if not early or _clips_before_the_end(ctx.control):
        return []
    numbers = {str(rank): found for rank, found in early.items()}
    because = _causes.cause("clip.every_micro_batch")
    return [
        ctx.finding(
            Phase.CLIP,
            "grad_norm",
            Site.SYNCED_GRADIENT,
            because,
            ranks=sorted(early),
            clips_before_the_last_backward=numbers,
            micro_batches=max(len(step.passes) for step in ctx.candidate.values()),
        )
    ]


def _clipped_before_reduction(ctx: StepContext, bad: list[GradientRow], sharp: float) -> list[Finding]:
    """Find ranks that clip their own gradients, which are reduced only then: what they step with is the same on all."""
    norms = {rank: [e.value for e in step.events.get(Event.CLIP, [])] for rank, step in ctx.candidate.items()}
    apart = [row for row in bad if row.spread > sharp]
    if not all(norms.values()) or not apart or any(row.own is None for row in apart):
        return []
    used = {row.name: merge_parameter(ctx.held(Site.STEP_GRADIENT, row.name)) for row in apart}
    if any(found is None or found.reason or found.spread > sharp * found.digest.norm for found in used.values()):
        return []
    return [
        ctx.finding(
            Phase.CLIP,
            "grad_norm",
            Site.SYNCED_GRADIENT,
            _causes.cause("clip.before_reduction"),
            ranks=sorted(ctx.candidate),
            ranks_differ=True,
            after=ctx.control.update_of(apart[0].name),
            norms_by_rank={str(rank): found for rank, found in sorted(norms.items())},
        )
    ]


def _clips_before_the_end(step: RankStep) -> int:
    last = max((event.seq for event in step.passes), default=0)
    return sum(event.seq < last for event in step.events.get(Event.CLIP, []))


def _clipped_by_rank(ctx: StepContext, rows: list[GradientRow], floor: Floor) -> list[Finding]:
    """Find ranks whose gradients are all the control's times a factor of the rank's own: a clip with a local norm."""
    fitted = [fit for row in rows if row.logical is not None and (fit := _rank_factors(row, 4 * floor.value))]
    if len(fitted) < len(rows) or ctx.num_ranks < 2 or not fitted:
        return []
    factors = {rank: sorted(fit[rank] for fit in fitted if rank in fit) for rank in ctx.candidate}
    if any(not found or found[-1] - found[0] > 32 * floor.value * abs(found[0]) for found in factors.values()):
        return []
    middle = {rank: found[len(found) // 2] for rank, found in factors.items()}
    if max(middle.values()) - min(middle.values()) <= 32 * floor.value * max(map(abs, middle.values())):
        return []
    because = _causes.cause("clip.local_norm")
    numbers = {str(rank): factor for rank, factor in middle.items()}
    return [
        ctx.finding(
            Phase.CLIP,
            "clip_coefficient",
            Site.SYNCED_GRADIENT,
            because,
            floor=floor,
            ranks=sorted(ctx.candidate),
            ranks_differ=True,
            factor_by_rank=numbers,
        )
    ]


def _rank_factors(row: GradientRow, floor: float) -> dict[int, float] | None:
    """Return f of each rank with gradient = f * control, for copies; with the shards' sum of gradient / f = control."""
    held = {rank: found.digest for rank, found in row.held.items() if found is not None}
    if all(found is None or found.site.global_shape is None for found in row.held.values()):
        relations = {rank: relate(digest, row.control) for rank, digest in held.items()}
        return {rank: r.factor for rank, r in relations.items()} if _all_hold(relations.values(), floor) else None
    columns = np.stack([digest.sketch for digest in held.values()], axis=1)
    weights, *_ = np.linalg.lstsq(columns, row.control.sketch, rcond=None)
    rest = float(np.linalg.norm(columns @ weights - row.control.sketch))
    if rest > floor * row.scale:
        return None
    return {r: 1.0 / w for (r, d), w in zip(held.items(), weights, strict=True) if d.norm > floor * row.scale and w}


def _all_hold(relations: Iterable[Relation], floor: float) -> bool:
    return all(relation.residual <= floor and math.isfinite(relation.factor) for relation in relations)


def _entry(ctx: StepContext) -> dict[str, Any]:
    """Find the first activation gradient, in backward order, that is not the control's: where the deviation enters."""
    floor = ctx.floors.at(ctx.step).value
    for name, error in _activation_gradient_errors(ctx):
        if error > floor:
            return {"enters_at": f"gradient of the output of {name}", "activation_gradient_error": error}
    return {}


def _accept_kinks(ctx: StepContext) -> None:
    """Raise the floor by what kinks make of rounding: up to the first activation gradient that they do not explain."""
    if not ctx.control.digests.get(Site.ACTIVATION):
        ctx.accepted(ctx.floors.kinks / 8.0)
        return
    allowed, worst = ctx.floors.kinks, 0.0
    for _, error in _activation_gradient_errors(ctx):
        if not error <= allowed:
            break
        worst = max(worst, error)
    ctx.accepted(worst)


def _activation_gradient_errors(ctx: StepContext) -> Iterator[tuple[str, float]]:
    """Yield each module's name and the relative error of its output's gradient, in backward order."""
    weight = ctx.share
    for (name, part), call, _ in reversed(list(ctx.calls(Site.ACTIVATION))):
        control_rows = [
            row
            for row in ctx.control.rows(Site.ACTIVATION_GRADIENT, name, part)
            if ctx.control.call_of(row) == call and row.backward in ctx.control.pass_numbers
        ]
        mine = {
            rank: [row for row in found if row.backward in ctx.candidate[rank].pass_numbers]
            for rank, found in calls_of(ctx, Site.ACTIVATION_GRADIENT, name, part, call).items()
        }
        if not control_rows or control_rows[0].rows == 0:
            continue
        pair = merge_activation(ctx, control_rows, mine)
        if not isinstance(pair, str):
            control, candidate, _ = pair
            yield name, relative(distance(scaled(candidate, weight), control), control.norm)
