"""Why a gradient deviates: each cause by the relation that proves it."""

import math
from typing import Any

from ddparity.trace import Event

from . import _causes
from ._context import StepContext
from ._gradients import GradientRow
from ._plan import NICE
from ._run import listed
from ._verdict import Cause, Phase

_LOW_PRECISION = (2.0**-13, 2.0**-6)
"""Relative errors that one rounding to float16 (2**-11) or bfloat16 (2**-8) leaves."""

_MAX_BLOCKS = 8


def common_factor(rows: list[GradientRow], floor: float) -> float | None:
    """Return c if every gradient is c times the control's and c is not 1."""
    known = [row.relation for row in rows if row.relation is not None and row.spread <= floor]
    factors = [relation.factor for relation in known if relation.residual <= 4 * floor]
    if len(factors) < max(1, len(rows)) or not all(map(math.isfinite, factors)):
        return None
    middle = sorted(factors)[len(factors) // 2]
    alike = all(abs(factor - middle) <= 4 * floor * abs(middle) for factor in factors)
    return middle if alike and abs(middle - 1.0) > floor else None


def explain(
    ctx: StepContext, row: GradientRow, rows: list[GradientRow], factor: float | None, floor: float
) -> tuple[Cause, Phase]:
    """Name the cause of one parameter's deviation, and the phase in which it comes about."""
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
    unsaid = f"The loss was not compared: {ctx.tally.unproved['loss']}." if "loss" in ctx.tally.unproved else ""
    return _causes.cause("grad.path", _causes.LIKELY, detail=unsaid), Phase.BACKWARD


def _not_held(ctx: StepContext, rank: int, name: str) -> bool:
    """Whether a rank's backward made a gradient of a parameter that its optimizers do not hold."""
    step = ctx.candidate[rank]
    reached = any(name in event.data.get("order", []) for event in step.events.get(Event.GRADIENT_ORDER, []))
    groups = [group for event in step.events.get(Event.OPTIMIZER, []) for group in event.data.get("params", [])]
    return reached and not any(name in group for group in groups)


def _explain_desync(ctx: StepContext, row: GradientRow, rows: list[GradientRow]) -> tuple[Cause, Phase]:
    if row.own is None:
        return _causes.cause("grad.ranks_differ", detail=_blocks(row)), Phase.COLLECTIVE
    if abs(row.own * ctx.num_ranks - 1.0) <= NICE:  # divided for an average that then did not happen
        return _causes.cause("grad.reduction_lost"), Phase.COLLECTIVE
    everywhere = all(other.own is not None for other in rows if not other.noise and other.logical is not None)
    return _causes.cause("grad.none_synced" if everywhere and len(rows) > 1 else "grad.unsynced"), Phase.BACKWARD


def _blocks(row: GradientRow) -> str:
    """Say which ranks hold the same gradient, where some do and not all: the groups that it was reduced over."""
    blocks = row.blocks
    if not 1 < len(blocks) < sum(map(len, blocks)):
        return ""
    shown = [f"rank{'s' if len(ranks) > 1 else ''} {listed(ranks)}" for ranks in blocks[:_MAX_BLOCKS]]
    more = f" and {len(blocks) - _MAX_BLOCKS} more" if len(blocks) > _MAX_BLOCKS else ""
    return f"Equal among themselves are {'; '.join(shown)}{more}."


def _explain_factor(ctx: StepContext, factor: float, local_fine: bool) -> tuple[Cause, Phase]:
    num = ctx.num_ranks
    earlier = _divisor(ctx, factor)
    if earlier is not None:
        detail = f"It has {ctx.micro_batches}, an earlier step {earlier}."
        return _causes.cause("grad.fixed_divisor", detail=detail), Phase.BACKWARD
    phase = Phase.COLLECTIVE if local_fine else Phase.BACKWARD
    if num > 1 and abs(factor - num) <= NICE * num and local_fine:
        return _causes.cause("grad.summed", detail=f"The factor is the number of ranks, {num}."), phase
    if num > 1 and abs(factor * num - 1.0) <= NICE:
        return _causes.cause("grad.double_averaged", detail=f"The factor is 1/{num}."), phase
    return _causes.cause("grad.scaled", detail=f"The factor is {factor:.6g}."), phase


def _divisor(ctx: StepContext, factor: float) -> int | None:
    """Return the number of micro-batches of an earlier step that a step with another number of them was divided by."""
    now = ctx.micro_batches
    return next((n for n in ctx.tally.micro_batches if n != now and abs(factor * n - now) <= NICE * now), None)


def evidence(ctx: StepContext, row: GradientRow, factor: float | None) -> dict[str, Any]:
    """Return the numbers that a finding about a gradient shows."""
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
