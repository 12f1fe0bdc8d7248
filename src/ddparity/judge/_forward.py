"""Initial parameters, and activations in the order of execution."""

import math

from ddparity.digest import Digest, distance, merge_shards, merge_sum, relative_error
from ddparity.trace import FLAG_GRAD, FLAG_RANDOM, DigestRow, Site

from . import _causes
from ._context import StepContext
from ._logical import layout_of, merge_calls, merge_parameter, samples_of
from ._plan import joined
from ._run import Call, RankStep
from ._verdict import Finding, Floor, Phase

_BATCH_NORM = ("BatchNorm", "SyncBN", "BatchStat", "GhostNorm")
_MAX_SKIPPED = 5
_SAME_OUTPUT = 1e-3
"""Relative distance of two outputs of a module up to which they may be one that does not depend on the batch."""


def initial_parameters(ctx: StepContext) -> list[Finding]:
    """Compare parameters as they were when they first took part in a forward."""
    findings: list[Finding] = []
    for (name, part), rows in ctx.control.digests.get(Site.PARAMETER, {}).items():
        held = {r: next(iter(step.rows(Site.PARAMETER, name, part)), None) for r, step in ctx.candidate.items()}
        logical = merge_parameter(held)
        if logical is None or logical.reason or logical.digest.shape != rows[0].digest.shape:
            ctx.tally.unproved.setdefault(name, logical.reason if logical and logical.reason else "another shape")
            continue
        ctx.tally.checked += 1
        floor = ctx.floors.at(0, depth=0)
        scale = max(rows[0].digest.norm, 1e-30)
        error = relative_error(logical.digest, rows[0].digest)
        if ctx.step > 0 and (error <= ctx.floors.after(ctx.step) or ctx.floors.since == ctx.step):
            ctx.tally.drift = max(ctx.tally.drift, error)  # what the steps before it made, which nobody recorded
            error = 0.0
        differ = logical.spread / scale > floor.value
        ctx.measured(Phase.INIT, name, max(error, logical.spread / scale), floor.value)
        inferred = any(row is not None and row.site.placement.startswith("inferred") for row in held.values())
        if inferred and error > floor.value:
            ctx.tally.unproved.setdefault(name, "its parts on the ranks do not make up the control's")
            ctx.tally.unplaced.add(name)
            continue
        if error > floor.value or differ:
            because = _causes.cause("init.ranks_differ" if differ else "init.differs")
            findings.append(
                ctx.finding(
                    Phase.INIT,
                    name,
                    Site.PARAMETER,
                    because,
                    floor=floor,
                    ranks=list(logical.ranks) or None,
                    ranks_differ=differ,
                    after=0,
                    relative_error=error,
                    spread=logical.spread / scale,
                )
            )
    ctx.accepted(ctx.tally.drift)
    return findings


def activations(ctx: StepContext) -> list[Finding]:
    """Compare what every module returned, in the control's order of execution, until random masks part the runs."""
    findings: list[Finding] = []
    skipped: list[str] = []
    addends: Finding | None = None
    shifted: Finding | None = None
    worst, after_tainted = 0.0, False
    for number, ((name, part), call, rows) in enumerate(ctx.calls(Site.ACTIVATION)):
        depth = number if ctx.step == 0 else ctx.floors.depth  # the step before has gone through all of it
        after_tainted = after_tainted or _owns_tainted(ctx, name)
        if not all(row.flags & FLAG_GRAD for row in rows) or _owns_tainted(ctx, name):
            continue
        mine = calls_of(ctx, Site.ACTIVATION, name, part, call)
        pair = merge_activation(ctx, rows, mine)
        if isinstance(pair, str):
            ctx.tally.unproved.setdefault(name, pair)
            skipped.append(f"{name} ({pair})")
            continue
        control, candidate, spread = pair
        ctx.tally.checked += 1
        floor = ctx.floors.at(ctx.step, depth=depth, of=(Site.ACTIVATION, name))
        added = merge_addends(ctx, name, mine) if spread > floor.value else None
        if added is not None and relative_error(added, control) <= floor.value:
            addends = _unreduced(ctx, name, part, rows[0], control, spread, floor)
            continue
        error = max(relative_error(candidate, control), spread)
        ctx.measured(Phase.FORWARD, f"{name or 'model'}{f':{part}' if part else ''}", error, floor.value)
        if error <= floor.value and candidate.finite == control.finite:
            worst, addends, shifted = max(worst, error), None, None
            continue
        drawn = any(row.flags & FLAG_RANDOM for row in [*rows, *(r for found in mine.values() for r in found)])
        if drawn and spread <= floor.value:
            ctx.tally.random = ctx.tally.random or name
            return findings
        if addends is not None and spread > floor.value and not findings:
            findings.append(addends)
        found = _activation_finding(ctx, name, part, rows[0], control, candidate, spread, floor)
        if skipped and not findings:
            found.cause.text += f" Not compared before it: {'; '.join(skipped[:_MAX_SKIPPED])}."
        if after_tainted and spread <= floor.value and distance(candidate, control) <= _shift(ctx, control):
            shifted = shifted or found  # a bias moved by rounding alone, which what comes next should cancel
            continue
        if shifted is not None and not findings:
            findings.append(shifted)
        findings.append(found)
    if shifted is not None and not findings:
        findings.append(shifted)
    ctx.accepted(worst)
    return findings


def _shift(ctx: StepContext, control: Digest) -> float:
    """Return how far an output may be off if a tainted bias is added to each of its positions.

    Between such a bias and the norm or the attention that cancels it may stand what passes it on: pooling, rotation, a
    split into heads. The factor of 2 is for distances of sketches, which are estimates.
    """
    moved = [
        (shape[0], by) for shape, by in ctx.tally.moved.items() if len(shape) == 1 and control.count % shape[0] == 0
    ]
    return max((2.0 * by * math.sqrt(control.count / count) for count, by in moved), default=0.0)


def _activation_finding(
    ctx: StepContext,
    name: str,
    part: str,
    row: DigestRow,
    control: Digest,
    candidate: Digest,
    spread: float,
    floor: Floor,
) -> Finding:
    if not candidate.finite and control.finite:
        because = _causes.cause("nonfinite")
    elif spread > floor.value:
        drawn = row.flags & FLAG_RANDOM
        because = (
            _causes.cause("random.masks_differ", _causes.LIKELY) if drawn else _causes.cause("forward.ranks_differ")
        )
    elif any(word in row.site.module for word in _BATCH_NORM):
        because = _causes.cause("bn.local_stats", _causes.LIKELY)
    else:
        because = _causes.cause("forward.batch_coupled", _causes.LIKELY)
    return ctx.finding(
        Phase.FORWARD,
        name,
        f"{Site.ACTIVATION}:{part}" if part else Site.ACTIVATION,
        because,
        floor=floor,
        ranks_differ=spread > floor.value,
        after=ctx.control.num_updates_before(row.seq),
        relative_error=relative_error(candidate, control),
        control_norm=control.norm,
        candidate_norm=candidate.norm,
        module=row.site.module,
        num_nan=candidate.num_nan,
        num_inf=candidate.num_inf,
    )


def _unreduced(
    ctx: StepContext, name: str, part: str, row: DigestRow, control: Digest, spread: float, floor: Floor
) -> Finding:
    """Return what is to be said of a row-parallel layer's output if what is computed from it differs between ranks."""
    return ctx.finding(
        Phase.FORWARD,
        name,
        f"{Site.ACTIVATION}:{part}" if part else Site.ACTIVATION,
        _causes.cause("forward.not_reduced"),
        floor=floor,
        ranks_differ=True,
        after=ctx.control.num_updates_before(row.seq),
        spread_over_ranks=spread,
        control_norm=control.norm,
        module=row.site.module,
    )


def _owns_tainted(ctx: StepContext, module: str) -> bool:
    return any(parameter.rpartition(".")[0] == module for parameter in ctx.tally.tainted)


def calls_of(ctx: StepContext, site: Site, name: str, part: str, call: Call) -> dict[int, list[DigestRow]]:
    """Return the candidate's calls of a module, by rank."""
    return {
        rank: [row for row in step.rows(site, name, part) if step.call_of(row) == call]
        for rank, step in ctx.candidate.items()
    }


def merge_activation(
    ctx: StepContext, rows: list[DigestRow], mine: dict[int, list[DigestRow]]
) -> tuple[Digest, Digest, float] | str:
    """Merge a module's calls on both sides: control, candidate, and the spread between ranks that hold copies.

    Returns a text that says why where the two cannot be held against each other.
    """
    layout = layout_of(rows)
    theirs = [row for rank in sorted(mine) for row in mine[rank]]
    if not theirs:
        return "the candidate never called it"
    if layout is None or layout_of(theirs) != layout:
        return "its rows cannot be told apart by sample"
    if layout == 0:
        return _merge_by_position(ctx, rows, mine)
    if {row.digest.shape[1:] for row in rows} != {row.digest.shape[1:] for row in theirs}:
        return "its shape on the ranks is not the control's"
    wanted = samples_of(rows, ctx.control)
    leaders = [rank for rank in ctx.samples.leaders if mine.get(rank)]
    held = joined(samples_of(mine[rank], ctx.candidate[rank]) for rank in leaders)
    if held != wanted:
        return "it ran on other samples than in the control"
    control = merge_calls(rows)
    merged = merge_shards([merge_calls(mine[rank]) for rank in leaders])
    return control, merged, _spread(ctx, mine, control.norm)


def merge_addends(ctx: StepContext, name: str, mine: dict[int, list[DigestRow]]) -> Digest | None:
    """Add up what the ranks of each part returned, where the module holds a part of the control's parameters.

    A row-parallel layer multiplies with its columns alone: its output is an addend, which is reduced outside of it.
    """
    sites = (Site.PARAMETER, Site.SYNCED_GRADIENT)
    held = [key for step in ctx.candidate.values() for site in sites for key in _parts_of(step, site)]
    if not any(parameter.rpartition(".")[0] == name for parameter in held):
        return None
    calls = [[merge_calls(mine[rank]) for rank in group if mine.get(rank)] for group in ctx.samples.groups]
    if not all(calls) or len({digest.shape for group in calls for digest in group}) > len(ctx.samples.groups):
        return None
    return merge_shards([merge_sum(group) for group in calls])


def _parts_of(step: RankStep, site: Site) -> list[str]:
    """Return the parameters of which a rank holds a part."""
    found = step.digests.get(site, {}).items()
    return [name for (name, _), rows in found if any(row.site.global_shape is not None for row in rows)]


def _merge_by_position(
    ctx: StepContext, rows: list[DigestRow], mine: dict[int, list[DigestRow]]
) -> tuple[Digest, Digest, float] | str:
    """Hold what has no row a sample against the control's: it is the same on every rank unless it depends on the batch.

    A loss or a count of routed tokens does; of those only copies, on ranks that hold the same samples, must be equal.
    """
    first = rows[0].digest
    theirs = [row for rank in sorted(mine) for row in mine[rank]]
    if all(row.site.global_shape is not None for row in theirs):
        return _merge_positions(rows, mine)
    if any(row.digest.shape != first.shape for row in [*rows, *theirs]):
        return "its shape on the ranks is not the control's"
    together = len(ctx.samples.groups) == 1 and len(rows) == 1 and all(len(found) <= 1 for found in mine.values())
    if not together and _depends_on_batch(ctx, rows):
        apart = _spread_of_copies(ctx, mine, first.norm)
        return (
            (first, first, apart) if apart else "it depends on the batch, and its rows cannot be told apart by sample"
        )
    spread = max(distance(row.digest, theirs[0].digest) for row in theirs)
    return first, theirs[0].digest, spread / first.norm if first.norm else 0.0


def _merge_positions(rows: list[DigestRow], mine: dict[int, list[DigestRow]]) -> tuple[Digest, Digest, float] | str:
    """Put together what ranks that hold parts of a sequence made of their positions; every call makes it again."""
    logical = merge_parameter({rank: found[0] for rank, found in sorted(mine.items()) if found})
    first = rows[0].digest
    if logical is None or logical.reason or logical.digest.shape != first.shape:
        return "its parts on the ranks do not make up the control's"
    return first, logical.digest, logical.spread / first.norm if first.norm else 0.0


def _depends_on_batch(ctx: StepContext, rows: list[DigestRow]) -> bool:
    """Whether an output without samples is one of the batch: a single number, or one that another batch changes."""
    first, site = rows[0].digest, rows[0].site
    others = [*rows[1:], *(ctx.elsewhere.rows(Site(site.site), site.name, site.part) if ctx.elsewhere else ())]
    return first.count == 1 or any(
        row.digest.shape == first.shape and distance(row.digest, first) > _SAME_OUTPUT * first.norm for row in others
    )


def _spread_of_copies(ctx: StepContext, mine: dict[int, list[DigestRow]], norm: float) -> float:
    """Return how far apart, call by call, ranks are that hold the same samples, relative to ``norm``."""
    worst = 0.0
    for group in ctx.samples.groups:
        leader, *others = [mine[rank] for rank in group if mine.get(rank)] or [[]]
        for rows in others:
            worst = max([worst, *(distance(a.digest, b.digest) for a, b in zip(leader, rows, strict=False))])
    return worst / norm if norm else 0.0


def _spread(ctx: StepContext, mine: dict[int, list[DigestRow]], norm: float) -> float:
    worst = 0.0
    for group in ctx.samples.groups:
        with_rows = [rank for rank in group if mine.get(rank)]
        for rank in with_rows[1:]:
            worst = max(worst, distance(merge_calls(mine[rank]), merge_calls(mine[with_rows[0]])))
    return worst / norm if norm else 0.0
