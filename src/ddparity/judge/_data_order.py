"""Across passes: is each epoch's order new, have all ranks as many batches, is what is evaluated never trained on?"""

from itertools import pairwise

import numpy as np

from ddparity.trace import TrialStatus

from ._data_audit import Audit, deviates, examples, passed
from ._data_passes import Pass, RankPass, same_dataset
from ._verdict import Phase


def audit_order(passes: list[Pass]) -> list[Audit]:
    """Say whether a shuffling sampler gave each epoch of training an order of its own."""
    found: list[Audit] = []
    for first, second in pairwise(sorted(passes, key=lambda each: each.ordinal)):
        if not _shuffles(second) or first.ranks.keys() != second.ranks.keys():
            continue
        if all(_goes_on(first.ranks[rank], each) for rank, each in second.ranks.items()):
            continue
        same = [rank for rank, each in second.ranks.items() if _same_order(first.ranks[rank], each)]
        if len(same) == len(second.ranks):
            return [_replayed(first, second)]
        found.append(passed("order", f"{second.dataset}: pass {second.ordinal} has an order of its own"))
    return found[-1:]


def _replayed(first: Pass, second: Pass) -> Audit:
    epochs = {str(rank): each.sampler.get("epoch") for rank, each in sorted(second.ranks.items())}
    return deviates(
        "order",
        f"{second.dataset}: pass {second.ordinal} repeats the order of pass {first.ordinal} on every rank",
        "data.epoch_order",
        step=second.step,
        ranks=sorted(second.ranks),
        same_as_pass=first.ordinal,
        sampler_epoch_by_rank=epochs,
        samples_compared=int(sum(len(each.ids) for each in second.ranks.values())),
    )


def _same_order(first: RankPass, second: RankPass) -> bool:
    num = min(len(first.ids), len(second.ids))
    return num > 2 and np.array_equal(first.ids[:num], second.ids[:num])


def _goes_on(first: RankPass, second: RankPass) -> bool:
    """Whether a pass begins where an earlier one was left: what that one trained on is passed over, as on resuming."""
    trained = first.before(int(second.steps[0])) if len(second.steps) else first.ids
    skipped = int(second.sizes[: second.num_skipped].sum())
    return not first.exhausted and 0 < len(trained) <= skipped and np.array_equal(trained, second.ids[: len(trained)])


def _shuffles(one: Pass) -> bool:
    sampler = one.ranks[min(one.ranks)].sampler
    if not one.by_index or not one.training:
        return False
    chain = sampler.get("chain")
    return sampler.get("shuffle") is True or "RandomSampler" in (chain if isinstance(chain, list) else [])


def audit_batches(one: Pass, status: TrialStatus) -> list[Audit]:
    """Say whether every rank has as many batches: where it has not, the others will wait for it for ever."""
    if len(one.ranks) < 2 or one.training is False:
        return []
    planned = {rank: each.facts.get("num_batches") for rank, each in sorted(one.ranks.items())}
    came = {rank: each.num_batches for rank, each in sorted(one.ranks.items())}
    numbers = came if one.exhausted else {r: n for r, n in planned.items() if isinstance(n, int)}
    if len(numbers) < len(one.ranks):
        return []
    if len(set(numbers.values())) == 1:
        return [passed("batches", f"{one.dataset}, pass {one.ordinal}: {next(iter(numbers.values()))} batches a rank")]
    fewest = min(numbers.values())
    short = [rank for rank, num in numbers.items() if num == fewest]
    text = f"{one.dataset}, pass {one.ordinal}: {fewest} batches on rank {', '.join(map(str, short))}, "
    text += f"up to {max(numbers.values())} on others"
    if one.training and one.exhausted and status is TrialStatus.COMPLETED:
        return [passed("batches", f"{text}; the run came to its end all the same")]
    by_rank = {str(rank): num for rank, num in numbers.items()}
    return [deviates("batches", text, "data.uneven", step=one.step, ranks=short, batches_by_rank=by_rank)]


def audit_split(passes: list[Pass]) -> list[Audit]:
    """Say whether some rank trains on what another evaluates: a random split that each rank made for itself."""
    found: list[Audit] = []
    for evaluated in passes:
        trained = [p for p in passes if p.training and p.by_index and p.key[:3] == evaluated.key[:3]]
        if evaluated.training is not False or not evaluated.by_index or not trained or evaluated.ordinal:
            continue
        if same_dataset([*trained, evaluated]):
            found += _split(trained, evaluated)
    return found


def _split(trained: list[Pass], evaluated: Pass) -> list[Audit]:
    own = {rank: _union([p.ranks[rank] for p in trained if rank in p.ranks]) for rank in evaluated.ranks}
    everywhere = np.unique(np.concatenate(list(own.values())))
    both = np.intersect1d(everywhere, _union(list(evaluated.ranks.values())))
    within = sum(len(np.intersect1d(ids, evaluated.ranks[rank].ids)) for rank, ids in own.items())
    if not len(both):
        return [passed("split", f"{evaluated.dataset}: nothing that is evaluated is trained on")]
    if within:  # also on the same rank: then it is meant, as a training accuracy is
        return [
            passed("split", f"{evaluated.dataset}: {len(both)} samples are evaluated and trained on, on one rank too")
        ]
    return [
        deviates(
            "split",
            f"{evaluated.dataset}: {len(both)} samples that some rank evaluates are trained on by another",
            "data.split_differs",
            step=evaluated.step,
            phase=Phase.DATA,
            ranks=sorted(evaluated.ranks),
            trained_and_evaluated=len(both),
            examples=examples(both),
        )
    ]


def _union(ranks: list[RankPass]) -> np.ndarray:
    return np.unique(np.concatenate([each.ids for each in ranks])) if ranks else np.zeros(0, dtype=np.uint64)


def audit_labels(one: Pass) -> list[Audit]:
    """Say whether the ranks' batches hold equally many labels: an average of averages weighs them alike."""
    if not one.training or len(one.ranks) < 2 or any((e.labels < 0).any() for e in one.ranks.values()):
        return []
    num = min(each.num_batches for each in one.ranks.values())
    table = np.stack([each.labels[:num] for _, each in sorted(one.ranks.items())])
    if not table.size:
        return []
    spread = table.max(axis=0) - table.min(axis=0)
    worst = int(spread.argmax())
    if not spread[worst]:
        return [passed("labels", f"{one.dataset}: as many labels on every rank, batch by batch")]
    counts = ", ".join(map(str, table[:, worst].tolist()[:8]))
    return [
        passed(
            "labels",
            f"{one.dataset}: the ranks hold different numbers of labels (batch {worst}: {counts}); "
            "a loss that is averaged over each rank's own and then over ranks weighs them wrongly",
        )
    ]
