"""Gradients in the order of backward: local, synchronised, equal on all ranks, equal to the control's."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ddparity.digest import Digest, Relation, distance, merge_weighted, relate, scaled
from ddparity.trace import DigestRow, Event, Site

from . import _causes
from ._context import StepContext
from ._floors import EPS
from ._forward import calls_of, loss_values, merge_activation
from ._logical import Logical, merge_parameter
from ._plan import NICE, is_placed, local_gradient
from ._verdict import Cause, Finding, Floor, Phase

_NOISE = 64.0
"""A gradient below this many eps of its natural scale is rounding and nothing else."""
_LOW_PRECISION = (2.0**-13, 2.0**-6)
"""Relative errors that one rounding to float16 (2**-11) or bfloat16 (2**-8) leaves."""


@dataclass(frozen=True)
class GradientRow:
    """What was measured for one parameter; errors are relative to ``scale``."""

    name: str
    control: Digest
    logical: Logical | None
    scale: float
    error: float
    spread: float
    local_error: float | None
    sync_error: float | None
    relation: Relation | None
    own: float | None
    noise: bool
    held: dict[int, DigestRow | None]

    @property
    def missing(self) -> bool:
        """Whether some rank has no gradient where the control has one."""
        return self.logical is None or bool(self.logical.missing)


def gradients(ctx: StepContext) -> list[Finding]:
    """Compare gradients with the control's and with each other; name the first parameter that deviates."""
    sharp = ctx.floors.at(ctx.step).value
    if ctx.comparable:
        _accept_kinks(ctx)
    rows = [row for name in ctx.backward_order() if (row := _measure(ctx, name)) is not None]
    floor = ctx.floors.at(ctx.step)
    for row in rows:
        if row.noise:
            ctx.tally.tainted.add(row.name)
        ctx.tally.checked += 1
    bad = [row for row in rows if not row.noise and _deviates(row, floor.value, sharp, ctx.comparable)]
    if not bad:
        return []
    loud = [row for row in rows if not row.noise]
    findings = _clipped_by_rank(ctx, loud, floor) if ctx.comparable else []
    factor = _common_factor(loud, floor.value) if ctx.comparable else None
    for row in bad:
        because, phase = _explain(ctx, row, rows, factor, sharp)
        differ = row.spread > sharp or bool(
            row.logical and row.logical.missing and len(row.logical.missing) < ctx.num_ranks
        )
        findings.append(
            ctx.finding(
                phase,
                row.name,
                Site.SYNCED_GRADIENT,
                because,
                floor=floor,
                ranks=sorted(ctx.candidate) if differ else None,
                ranks_differ=differ,
                **_evidence(ctx, row, factor),
            )
        )
    if not findings[0].ranks_differ and ctx.comparable:
        findings[0].evidence.update(_entry(ctx))
    return findings


def _deviates(row: GradientRow, floor: float, sharp: float, comparable: bool) -> bool:
    if row.missing or row.spread > sharp:
        return True
    reduced = row.sync_error is None or row.sync_error <= sharp
    return comparable and row.error > (floor if reduced else sharp)


def _measure(ctx: StepContext, name: str) -> GradientRow | None:
    control_rows = ctx.control.rows(Site.SYNCED_GRADIENT, name)
    if not control_rows or name in ctx.tally.unplaced:
        return None
    control = control_rows[0].digest
    held = ctx.held(Site.SYNCED_GRADIENT, name)
    if not held:  # no rank came that far, or no stage is responsible for it
        return None
    logical = merge_parameter(held)
    scale = max(control.norm, natural_scale(ctx, name, control))
    noise = control.norm <= _NOISE * EPS.get(ctx.floors.dtype, EPS["float32"]) * scale
    if logical is None:
        return (
            None if noise else GradientRow(name, control, None, scale, 1.0, 0.0, None, None, None, False, noise, held)
        )
    if logical.reason or logical.digest.shape != control.shape:
        ctx.tally.unproved.setdefault(name, logical.reason or "its shape on the ranks is not the control's")
        return None
    local = [local_gradient(ctx.candidate[rank], name) for rank in held]
    placed = any(is_placed(ctx.candidate[rank], name) for rank in held)
    complete = [digest for digest in local if digest is not None and digest.shape == control.shape and not placed]
    merged = merge_weighted(complete, [_weight(ctx)] * len(complete)) if len(complete) == ctx.num_ranks else None
    return GradientRow(
        name=name,
        control=control,
        logical=logical,
        scale=scale,
        error=_relative(distance(logical.digest, control), scale),
        spread=_relative(logical.spread, scale),
        local_error=None if merged is None else _relative(distance(merged, control), scale),
        sync_error=None if merged is None else _relative(distance(logical.digest, merged), max(merged.norm, scale)),
        relation=relate(logical.digest, control) if control.norm else None,
        own=_own_factor(held, local),
        noise=noise,
        held=held,
    )


def _relative(difference: float, scale: float) -> float:
    return 0.0 if difference == 0.0 else difference / scale if scale > 0.0 else math.inf


def _weight(ctx: StepContext) -> float:
    """Return the weight local gradients should have: 1/N, unless a hand-written sum reproduces the control's loss."""
    if ctx.num_ranks <= 1:
        return 1.0
    if ctx.reduction.observed == "sum" and not ctx.reduction.wrapper:
        values = loss_values(ctx)
        if values is not None and abs(values[1] - values[0]) <= ctx.floors.at(ctx.step).value * abs(values[0]):
            return 1.0
    return 1.0 / ctx.num_ranks


def natural_scale(ctx: StepContext, name: str, control: Digest) -> float:
    """Return the size that rounding in a gradient is relative to, for gradients that nearly cancel.

    A bias's gradient is a sum over rows of its module's output gradient: the magnitudes of those are its scale
    (a bias in front of a batch norm has a gradient of zero, made of terms that are not). Elsewhere a hundredth of
    the mean size of the control's gradients.
    """
    squares = [rows[0].digest for rows in ctx.control.digests.get(Site.SYNCED_GRADIENT, {}).values()]
    count = sum(d.count for d in squares)
    mean = math.sqrt(math.fsum(d.sum_sq for d in squares if not math.isnan(d.sum_sq)) / count) if count else 0.0
    general = 0.01 * mean * math.sqrt(control.count)
    if len(control.shape) != 1:
        return general
    outputs = ctx.control.digests.get(Site.ACTIVATION_GRADIENT, {})
    module = name.rpartition(".")[0]
    terms = [rows for (owner, _), rows in outputs.items() if owner == module]
    if not terms:
        return 10.0 * general
    total = math.fsum(row.digest.sum_abs for rows in terms for row in rows)
    return max(general, 0.25 * total / math.sqrt(max(control.count, 1)))


def _own_factor(held: dict[int, DigestRow | None], local: Sequence[Digest | None]) -> float | None:
    """Return c if every rank's synchronised gradient is c times its own local one."""
    factors = []
    for row, mine in zip(held.values(), local, strict=True):
        if row is None or mine is None or row.digest.shape != mine.shape:
            return None
        relation = relate(row.digest, mine)
        if not relation.residual < NICE:
            return None
        factors.append(relation.factor)
    alike = len(factors) > 1 and max(factors) - min(factors) <= NICE * abs(factors[0])
    return factors[0] if alike else None


def _common_factor(rows: list[GradientRow], floor: float) -> float | None:
    """Return c if every gradient is c times the control's and c is not 1."""
    known = [row.relation for row in rows if row.relation is not None and row.spread <= floor]
    factors = [relation.factor for relation in known if relation.residual <= 4 * floor]
    if len(factors) < max(1, len(rows)) or not all(map(math.isfinite, factors)):
        return None
    middle = sorted(factors)[len(factors) // 2]
    alike = all(abs(factor - middle) <= 4 * floor * abs(middle) for factor in factors)
    return middle if alike and abs(middle - 1.0) > floor else None


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


def _explain(
    ctx: StepContext, row: GradientRow, rows: list[GradientRow], factor: float | None, floor: float
) -> tuple[Cause, Phase]:
    local_fine = row.local_error is not None and row.local_error <= floor
    if row.logical is not None and (not row.logical.digest.finite) and row.control.finite:
        return _causes.cause("nonfinite"), Phase.BACKWARD
    if row.name in ctx.tally.lost_ties:
        return _causes.cause("init.tie_lost"), Phase.BACKWARD
    if row.spread > floor:
        return _explain_desync(ctx, row, rows)
    if row.logical is None and all(_not_held(ctx, rank, row.name) for rank in row.held):
        return _causes.cause("opt.not_held"), Phase.OPTIMIZER
    if row.missing:
        return _causes.cause("grad.missing"), Phase.BACKWARD
    if factor is not None:
        return _explain_factor(ctx, factor, local_fine)
    if local_fine:
        if row.sync_error is not None and _LOW_PRECISION[0] < row.sync_error < _LOW_PRECISION[1]:
            return _causes.cause("grad.low_precision", _causes.LIKELY), Phase.COLLECTIVE
        return _causes.cause("grad.wrong_reduction", _causes.LIKELY), Phase.COLLECTIVE
    return _causes.cause("grad.path", _causes.LIKELY), Phase.BACKWARD


def _not_held(ctx: StepContext, rank: int, name: str) -> bool:
    """Whether a rank's backward made a gradient of a parameter that its optimizers do not hold."""
    step = ctx.candidate[rank]
    reached = any(name in event.data.get("order", []) for event in step.events.get(Event.GRADIENT_ORDER, []))
    groups = [group for event in step.events.get(Event.OPTIMIZER, []) for group in event.data.get("params", [])]
    return reached and not any(name in group for group in groups)


def _explain_desync(ctx: StepContext, row: GradientRow, rows: list[GradientRow]) -> tuple[Cause, Phase]:
    if row.own is None:
        return _causes.cause("grad.ranks_differ"), Phase.COLLECTIVE
    if abs(row.own * ctx.num_ranks - 1.0) <= NICE:  # divided for an average that then did not happen
        return _causes.cause("grad.reduction_lost"), Phase.COLLECTIVE
    everywhere = all(other.own is not None for other in rows if not other.noise and other.logical is not None)
    return _causes.cause("grad.none_synced" if everywhere and len(rows) > 1 else "grad.unsynced"), Phase.BACKWARD


def _explain_factor(ctx: StepContext, factor: float, local_fine: bool) -> tuple[Cause, Phase]:
    num = ctx.num_ranks
    phase = Phase.COLLECTIVE if local_fine else Phase.BACKWARD
    if num > 1 and abs(factor - num) <= NICE * num and local_fine:
        return _causes.cause("grad.summed", detail=f"The factor is the number of ranks, {num}."), phase
    if num > 1 and abs(factor * num - 1.0) <= NICE:
        return _causes.cause("grad.double_averaged", detail=f"The factor is 1/{num}."), phase
    return _causes.cause("grad.scaled", detail=f"The factor is {factor:.6g}."), phase


def _evidence(ctx: StepContext, row: GradientRow, factor: float | None) -> dict[str, Any]:
    found: dict[str, Any] = {"control_norm": row.control.norm}
    if row.logical is not None:
        found["candidate_norm"] = row.logical.digest.norm
        found["spread_over_ranks"] = row.spread
    else:
        found["candidate"] = "no gradient on any rank"
    if ctx.comparable:
        found["relative_error"] = row.error
        if row.local_error is not None:
            found["merged_local_against_control"] = row.local_error
            found["synced_against_merged_local"] = row.sync_error
        if row.relation is not None and math.isfinite(row.relation.factor):
            found["factor"], found["residual"] = row.relation.factor, row.relation.residual
    if factor is not None:
        found["common_factor"] = factor
    return found


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
    for (name, part), occurrence, _ in reversed(list(ctx.calls(Site.ACTIVATION))):
        control_rows = [
            row
            for row in ctx.control.rows(Site.ACTIVATION_GRADIENT, name, part)
            if row.occurrence == occurrence and row.backward in ctx.control.pass_numbers
        ]
        mine = {
            rank: [row for row in found if row.backward in ctx.candidate[rank].pass_numbers]
            for rank, found in calls_of(ctx, Site.ACTIVATION_GRADIENT, name, part, occurrence).items()
        }
        if not control_rows or control_rows[0].rows == 0:
            continue
        pair = merge_activation(ctx, control_rows, mine)
        if not isinstance(pair, str):
            control, candidate, _ = pair
            yield name, _relative(distance(scaled(candidate, weight), control), control.norm)
