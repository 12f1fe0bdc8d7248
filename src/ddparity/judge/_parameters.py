"""Parameters as a step leaves them: after the optimizer, and after whatever changes them until the next step."""

import math
from typing import NamedTuple

from ddparity.digest import Digest, distance, same
from ddparity.trace import DigestRow, Event, Site

from . import _causes
from ._context import StepContext
from ._left import LeftParameter
from ._logical import Logical, merge_parameter
from ._verdict import Finding, Floor, Phase

_SCALE_FREE = ("Adam", "RMSprop", "Adagrad", "Adadelta", "Lion", "Adafactor", "Muon", "Rprop")


def parameters(ctx: StepContext) -> list[Finding]:
    """Compare parameters after the step: over the ranks, and with the control's."""
    findings: list[Finding] = []
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
        off = _off(ctx, name, logical, control)
        if off is not None and not (ctx.left.mended and off.spread > off.sharp):
            findings.append(_parameter_finding(ctx, name, logical, off))
    return findings


class _Off(NamedTuple):
    """How far a parameter is from the control's, and its copies from each other; relative, with what is allowed."""

    error: float
    spread: float
    sharp: float
    floor: Floor


def _off(ctx: StepContext, name: str, logical: Logical, control: Digest) -> _Off | None:
    """Hold a parameter after the step against the control's; None if rounding accounts for what they are apart."""
    ctx.tally.checked += 1
    sharp = ctx.floors.rounding(ctx.step)
    floor = ctx.floors.at(ctx.step, of=(Site.PARAMETER_AFTER, name))
    scale = max(control.norm, _rate(ctx) * ctx.tally.scales.get(name, 0.0) / _scaled_by(ctx), 1e-30)
    error, spread = distance(logical.digest, control) / scale, logical.spread / scale
    ctx.measured(Phase.OPTIMIZER, name, max(error if ctx.comparable else 0.0, spread), floor.value)
    if spread <= sharp and not ctx.comparable:
        return None
    if spread <= sharp and error > sharp and is_scale_free(ctx) and _amplified(ctx, name, error * scale, control):
        _accept(ctx, name, error, error * scale, control)
        return None
    if spread <= sharp and error <= floor.value:
        ctx.tally.drift = max(ctx.tally.drift, 0.0 if name in ctx.tally.tainted else error)
        return None
    return _Off(error, spread, sharp, floor)


def left_parameters(ctx: StepContext, known: set[str]) -> list[Finding]:
    """Compare what the step left of parameters that something other than the optimizer changed before the next one.

    ``known`` are those that deviate already where the optimizer left them.
    """
    findings: list[Finding] = []
    for left in ctx.left.changed if ctx.left.settled else ():
        logical = merge_parameter(_responsible(ctx, left))
        if left.name in ctx.tally.unplaced | known or logical is None:
            continue
        if logical.reason or logical.digest.shape != left.control.digest.shape:
            ctx.tally.unproved.setdefault(left.name, logical.reason or "its shape on the ranks is not the control's")
            continue
        off = _off(ctx, left.name, logical, left.control.digest)
        if off is not None:
            findings.append(_left_finding(ctx, left, logical, off))
    return findings


def _responsible(ctx: StepContext, left: LeftParameter) -> dict[int, DigestRow | None]:
    after = ctx.held(Site.PARAMETER_AFTER, left.name, left.part)
    return {rank: row for rank, row in left.held.items() if rank in after} if any(after.values()) else left.held


def _left_finding(ctx: StepContext, left: LeftParameter, logical: Logical, off: _Off) -> Finding:
    differ = off.spread > off.sharp
    code = "opt.changed_on_ranks" if differ else "opt.changed_after"
    return ctx.finding(
        Phase.OPTIMIZER,
        left.name,
        Site.PARAMETER_LEFT,
        _causes.cause(code),
        floor=off.floor,
        ranks=list(logical.ranks) or None,
        ranks_differ=differ,
        relative_error=off.error,
        spread_over_ranks=off.spread,
        changed_after_the_step_on=left.changed_on,
        changed_in_control=left.in_control,
    )


def is_scale_free(ctx: StepContext) -> bool:
    """Whether an optimizer of the step moves every element by about its learning rate, however small its gradient."""
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
    return difference <= rate * amplified_share(ctx, control)


def amplified_share(ctx: StepContext, control: Digest) -> float:
    """Return how far rounding may move a tensor then, in learning rates."""
    floor = max(ctx.floors.rounding(ctx.step), ctx.floors.upstream)
    return math.sqrt(64.0 * control.count * floor + 16.0)


def _rate(ctx: StepContext) -> float:
    """Return the largest learning rate of the control's groups."""
    groups = (group for event in ctx.control.updates for group in event.data.get("groups", []))
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


def _parameter_finding(ctx: StepContext, name: str, logical: Logical, off: _Off) -> Finding:
    differ = off.spread > off.floor.value
    if differ:
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
        floor=off.floor,
        ranks=list(logical.ranks) or None,
        ranks_differ=differ,
        relative_error=off.error,
        spread_over_ranks=off.spread,
        candidate_norm=logical.digest.norm,
    )


def _unmoved(ctx: StepContext, name: str) -> bool:
    for step in ctx.candidate.values():
        before, after = step.rows(Site.PARAMETER, name), step.rows(Site.PARAMETER_AFTER, name)
        if not before or not after or not same(before[0].digest, after[-1].digest):
            return False
    return True
