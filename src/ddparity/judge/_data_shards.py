"""Shares of one pass: are they disjoint, and do they together cover the dataset?"""

from dataclasses import dataclass

import numpy as np

from ._data_audit import Audit, deviates, examples, passed, unsettled
from ._data_passes import Pass
from ._verdict import Phase

_FEW = 2
"""Batches a rank that an epoch may lose to drop_last."""

_REPLACED = 0.3
"""Samples drawn with replacement come again on a rank as often as between two ranks; of that this share at least."""


@dataclass(frozen=True, kw_only=True)
class Shares:
    """The numbers of one pass.

    Attributes:
        total: Samples of one rank of each part.
        unique: Different ones among them, (n,).
        on_several: Those that are in more than one part.
        within: How many come again within a rank.
        missing: How many of the dataset came on no rank; None if its length is not known or the pass was cut short.
    """

    total: int
    unique: np.ndarray
    on_several: np.ndarray
    within: int
    missing: int | None


def count(one: Pass) -> Shares:
    """Count a pass."""
    leaders = [one.ranks[part[0]].ids for part in one.parts]
    singles = [np.unique(ids) for ids in leaders]
    unique, counts = np.unique(np.concatenate(singles), return_counts=True)
    length = one.facts.get("length")
    divided = one.num_replicas > 1 or len(one.parts) == 1  # else each rank has a dataset of its own, cut by hand
    whole = one.exhausted and one.by_index and divided and isinstance(length, int)
    return Shares(
        total=sum(len(ids) for ids in leaders),
        unique=unique,
        on_several=unique[counts > 1],
        within=sum(len(ids) - len(single) for ids, single in zip(leaders, singles, strict=True)),
        missing=max(0, length - len(unique)) if whole and isinstance(length, int) else None,
    )


def audit_shares(one: Pass, *, reduces: bool) -> list[Audit]:
    """Say whether the ranks' shares of a pass are disjoint and complete.

    Args:
        one: The pass.
        reduces: Whether a wrapper averages the ranks' gradients, so that copies of samples are of no use.
    """
    shares = count(one)
    where = _where(one)
    if not shares.total:
        return [unsettled("shards", f"{where}: no sample came")]
    workers = _workers(one, shares, where)
    if workers is not None:
        return [workers]
    if len(one.ranks) > 1 and len(one.parts) == 1:
        return [_all_alike(one, shares, where, reduces=reduces)]
    parts = len(one.parts)
    short = _coverage(one, shares, where)
    if shares.missing and len(one.ranks) < one.num_replicas and len(shares.on_several) < one.num_replicas:
        return short  # the few that repeat pad shares of more ranks than there are
    if len(shares.on_several):
        return [_overlapping(one, shares, where)]
    text = f"{where}: {parts} disjoint share{'' if parts == 1 else 's'}, {shares.total} samples"
    return [passed("shards", text), *short]


def _where(one: Pass) -> str:
    use = {True: "training", False: "evaluation", None: "unused"}[one.training]
    return f"{one.dataset}, {use}, pass {one.ordinal}"


def _phase(one: Pass) -> Phase:
    return Phase.EVAL if one.training is False else Phase.DATA


def _workers(one: Pass, shares: Shares, where: str) -> Audit | None:
    """Find workers that deliver the same samples of a stream."""
    num = one.facts.get("num_workers")
    if one.by_index or not isinstance(num, int) or num < 2 or not shares.within:
        return None
    own = [each.ids for each in one.ranks.values()]
    copies = sum(len(ids) - len(np.unique(ids)) for ids in own)
    if 2 * copies < sum(map(len, own)) * (num - 1) / num:
        return None
    return deviates(
        "shards",
        f"{where}: {copies} of {sum(map(len, own))} samples come again within a rank, as {num} workers would copy them",
        "data.workers_copy",
        step=one.step,
        phase=_phase(one),
        ranks=sorted(one.ranks),
        samples=sum(map(len, own)),
        repeated_within_a_rank=copies,
        num_workers=num,
    )


def _all_alike(one: Pass, shares: Shares, where: str, *, reduces: bool) -> Audit:
    text = f"{where}: all {len(one.ranks)} ranks hold the same {shares.total} samples"
    if one.training is False:
        return passed("shards", f"{text}; each evaluates all of them")
    if not one.same_dataset:
        return unsettled("shards", f"{text} by index; their contents differ: cut by hand, or augmented at random")
    if not reduces:
        return passed("shards", f"{text}, and nothing averages their gradients as if they were shares")
    return deviates(
        "shards",
        f"{text}, and their gradients are averaged",
        "data.overlap",
        step=one.step,
        ranks=sorted(one.ranks),
        samples=shares.total,
        on_several_ranks=len(shares.unique),
        examples=examples(shares.unique),
    )


def _overlapping(one: Pass, shares: Shares, where: str) -> Audit:
    repeated = len(shares.on_several)
    if _is_padding(one, shares):
        text = f"{where}: {repeated} sample{'' if repeated == 1 else 's'} repeated to give every rank as many"
        if one.training is not False:
            return passed("shards", text)
        return deviates(
            "shards",
            f"{text}; a metric over them is off by up to {repeated / shares.total:.2%}",
            "eval.padded",
            step=one.step,
            phase=Phase.EVAL,
            ranks=sorted(one.ranks),
            evaluated_too_often=repeated,
            samples=shares.total,
            error_up_to=round(repeated / shares.total, 6),
            examples=examples(shares.on_several),
        )
    if one.by_index and shares.within * (len(one.parts) - 1) > _REPLACED * repeated:
        text = f"{where}: {repeated} samples are on several ranks, and {shares.within} come again on one"
        return passed("shards", f"{text}: they are drawn with replacement")
    if not one.same_dataset:
        text = f"{where}: {repeated} indices are on several ranks, with other contents"
        return unsettled("shards", f"{text}: cut by hand, or augmented at random")
    missing = "" if shares.missing is None else f", {shares.missing} on none"
    return deviates(
        "shards",
        f"{where}: {repeated} samples are on several ranks{missing}",
        "data.sampler_differs",
        step=one.step,
        phase=_phase(one),
        ranks=sorted(one.ranks),
        samples=shares.total,
        on_several_ranks=repeated,
        missing=shares.missing,
        samplers_differ=_differing(one),
        examples=examples(shares.on_several),
    )


def _is_padding(one: Pass, shares: Shares) -> bool:
    parts = len(one.parts)
    even = len({len(each.ids) for each in one.ranks.values()}) == 1
    return even and shares.missing == 0 and shares.total - len(shares.unique) < parts


def _differing(one: Pass) -> dict[str, list[object]]:
    """Return the facts of samplers that are not the same on all ranks, but for the rank itself."""
    samplers = [each.sampler for _, each in sorted(one.ranks.items())]
    names = [name for name in samplers[0] if name not in ("rank", "chain")]
    found: dict[str, list[object]] = {name: [sampler.get(name) for sampler in samplers] for name in names}
    return {name: values for name, values in found.items() if len({repr(value) for value in values}) > 1}


def _coverage(one: Pass, shares: Shares, where: str) -> list[Audit]:
    if shares.missing is None:
        return []
    if not shares.missing:
        return [passed("coverage", f"{where}: every sample once")]
    facts, ranks = one.facts, max(len(one.ranks), one.num_replicas)
    batch = facts.get("batch_size")
    few = _FEW * ranks * (batch if isinstance(batch, int) else int(max(e.sizes.max() for e in one.ranks.values())))
    text = f"{where}: {shares.missing} of {facts['length']} samples came on no rank"
    if shares.missing < few and one.num_replicas <= len(one.ranks):
        return [passed("coverage", f"{text}, as drop_last leaves them out")]
    return [
        deviates(
            "coverage",
            text,
            "data.not_covered",
            step=one.step,
            phase=_phase(one),
            ranks=sorted(one.ranks),
            missing=shares.missing,
            length=facts["length"],
            num_replicas=one.num_replicas,
            num_ranks=len(one.ranks),
        )
    ]
