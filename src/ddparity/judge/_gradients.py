"""What is measured of one parameter's gradient: against the control's, over the ranks, against the local ones."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ddparity.digest import Digest, Relation, distance, merge_weighted, relate, same
from ddparity.trace import DigestRow, Site

from ._context import StepContext
from ._floors import EPS
from ._logical import Logical, merge_parameter
from ._loss import loss_scale, loss_values
from ._plan import NICE, is_placed, local_gradient

_NOISE = 64.0
"""A gradient below this many eps of its natural scale is rounding and nothing else."""


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
    def by_rank(self) -> dict[int, float]:
        """Rank -> relative error of its own copy; empty where the ranks hold parts."""
        whole = {rank: row.digest for rank, row in self.held.items() if row is not None and not row.site.global_shape}
        copies = {rank: digest for rank, digest in whole.items() if digest.shape == self.control.shape}
        return {rank: relative(distance(digest, self.control), self.scale) for rank, digest in copies.items()}

    @property
    def blocks(self) -> list[list[int]]:
        """Ranks that hold equal copies of the gradient, list by list; none where the ranks hold parts."""
        found: list[tuple[Digest, list[int]]] = []
        for rank, row in self.held.items():
            if row is None or row.site.global_shape:
                continue
            known = next((ranks for digest, ranks in found if same(digest, row.digest)), None)
            if known is None:
                found.append((row.digest, [rank]))
            else:
                known.append(rank)
        return [ranks for _, ranks in found]

    @property
    def missing(self) -> bool:
        """Whether some rank has no gradient where the control has one."""
        return self.logical is None or bool(self.logical.missing)


def measure(ctx: StepContext, name: str) -> GradientRow | None:
    """Measure one parameter's gradient on all ranks; None where there is nothing to hold against the control's."""
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
    weight = _weight(ctx)
    merged = merge_weighted(complete, [weight] * len(complete)) if len(complete) == ctx.num_ranks else None
    scale = max(scale, weight * math.fsum(digest.norm for digest in complete))  # what the ranks' parts cancel from
    return GradientRow(
        name=name,
        control=control,
        logical=logical,
        scale=scale,
        error=relative(distance(logical.digest, control), scale),
        spread=relative(logical.spread, scale),
        local_error=None if merged is None else relative(distance(merged, control), scale),
        sync_error=None if merged is None else relative(distance(logical.digest, merged), max(merged.norm, scale)),
        relation=relate(logical.digest, control) if control.norm else None,
        own=_own_factor(held, local),
        noise=noise,
        held=held,
    )


def relative(difference: float, scale: float) -> float:
    """Return a relative error; 0 where nothing differs, inf where there is nothing to relate it to."""
    return 0.0 if difference == 0.0 else difference / scale if scale > 0.0 else math.inf


def _weight(ctx: StepContext) -> float:
    """Return the weight local gradients should have: 1/N, unless a hand-written sum reproduces the control's loss."""
    if ctx.num_ranks <= 1:
        return 1.0
    if ctx.reduction.observed == "sum" and not ctx.reduction.wrapper:
        values = loss_values(ctx)
        if values is not None and abs(values[1] - values[0]) <= ctx.floors.at(ctx.step).value * loss_scale(ctx):
            return 1.0
    return 1.0 / ctx.num_ranks


def natural_scale(ctx: StepContext, name: str, control: Digest) -> float:
    """Return the size that rounding in a gradient is relative to, for gradients that nearly cancel.

    A bias's gradient is a sum over rows of its module's output gradient: the magnitudes of those are its scale
    (a bias in front of a batch norm has a gradient of zero, made of terms that are not). Elsewhere a hundredth of
    the mean size of the control's gradients, and more of it where elements are few.
    """
    squares = [rows[0].digest for rows in ctx.control.digests.get(Site.SYNCED_GRADIENT, {}).values()]
    count = sum(d.count for d in squares)
    mean = math.sqrt(math.fsum(d.sum_sq for d in squares if not math.isnan(d.sum_sq)) / count) if count else 0.0
    share = min(max(0.01, 4.0 / max(control.count, 1)), 1.0)  # a handful of elements may all cancel by chance
    general = share * mean * math.sqrt(control.count)
    if len(control.shape) != 1:
        return general
    outputs = ctx.control.digests.get(Site.ACTIVATION_GRADIENT, {})
    module = name.rpartition(".")[0]
    terms = [rows for (owner, _), rows in outputs.items() if owner == module]
    if not terms:
        return max(general, 0.1 * mean * math.sqrt(control.count))
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
