"""The loss that backward was called on: summed over micro-batches, merged over ranks, held against the control's."""

import math

from ddparity.trace import Site

from . import _causes
from ._context import StepContext
from ._floors import LOSS
from ._run import RankStep
from ._verdict import Finding, Phase

_LEAST = 1e-6
"""A loss below this is taken for one of this size where nothing tells what it is made of."""


def loss_values(ctx: StepContext, after: int | None = None) -> tuple[float, float] | None:
    """Return the control's loss of the step and the candidate's, merged with the weight of the plan.

    ``after`` takes the passes that come after so many of the step's updates, and no others.
    """
    control = _passes_after(ctx.control, after)
    held = _by_rank(ctx, after)
    every = [value for values in held.values() for value in values]
    cut_short = any(len(step.passes) < len(step.batches) for step in ctx.candidate.values() if not step.complete)
    if cut_short or not control or not every or any(value is None for value in (*control, *every)):
        return None
    total = math.fsum(v for v in every if v is not None)
    return math.fsum(v for v in control if v is not None), total * ctx.share / ctx.multiplicity


def loss_scale(ctx: StepContext, after: int | None = None) -> float:
    """Return the size that rounding in a loss is relative to: a loss may be what is left of parts that cancel.

    So it is over ranks and micro-batches, whose losses may differ in sign, and over samples, as with advantages that
    add up to zero. There the size of a module's output times that of its gradient tells: an output that is off by a
    share of its size moves the loss by as much of that product.
    """
    control = [abs(value) for value in _passes_after(ctx.control, after) if value is not None]
    every = [abs(value) for values in _by_rank(ctx, after).values() for value in values if value is not None]
    sizes = [_LEAST, math.fsum(control), math.fsum(every) * ctx.share / ctx.multiplicity]
    outputs = ctx.control.digests.get(Site.ACTIVATION, {})
    for key, rows in ctx.control.digests.get(Site.ACTIVATION_GRADIENT, {}).items():
        pairs = zip(outputs.get(key, ()), rows, strict=False)
        sizes.append(math.fsum(made.digest.norm * back.digest.norm for made, back in pairs))
    return max(size for size in sizes if math.isfinite(size))


def loss(ctx: StepContext) -> list[Finding]:
    """Compare the loss that backward was called on, summed over micro-batches and merged over ranks."""
    findings: list[Finding] = []
    for after in sorted({ctx.control.num_updates_before(event.seq) for event in ctx.control.passes}):
        findings += _loss_after(ctx, after)
    return findings


def _by_rank(ctx: StepContext, after: int | None) -> dict[int, list[float | None]]:
    """Return each rank's losses; without ranks that only hand gradients on, as do a pipeline's stages but the last."""
    held = {rank: _passes_after(step, after) for rank, step in ctx.candidate.items()}
    told = {rank: values for rank, values in held.items() if any(value is not None for value in values)}
    return told if ctx.samples.foreign and told else held


def _passes_after(step: RankStep, after: int | None) -> list[float | None]:
    return [event.value for event in step.passes if after is None or step.num_updates_before(event.seq) == after]


def _loss_after(ctx: StepContext, after: int) -> list[Finding]:
    values = loss_values(ctx, after)
    if values is None:
        ctx.tally.unproved.setdefault("loss", "backward was not called on a scalar on every rank")
        return []
    control, candidate = values
    ctx.tally.checked += 1
    floor = ctx.floors.at(ctx.step, of=(LOSS, LOSS))
    error = abs(candidate - control) / loss_scale(ctx, after)
    ctx.measured(Phase.LOSS, "loss", error, floor.value)
    if error <= floor.value or candidate == control or (math.isnan(control) and math.isnan(candidate)):
        return []
    because = (
        _causes.cause("nonfinite") if not math.isfinite(candidate) else _causes.cause("loss.weighting", _causes.LIKELY)
    )
    return [
        ctx.finding(
            Phase.LOSS,
            "loss",
            "loss",
            because,
            floor=floor,
            after=after,
            relative_error=error,
            control=control,
            candidate=candidate,
            by_rank={str(r): math.fsum(v or 0.0 for v in held) for r, held in _by_rank(ctx, after).items()},
            weight=ctx.share / ctx.multiplicity,
            micro_batches=max(len(step.passes) for step in ctx.candidate.values()),
        )
    ]
