"""What a picture of the samples is made of: who took which, from the first sample to the last."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import msgspec
import numpy as np

from ._bounded import some_ranks
from ._data_passes import Pass, passes_of
from ._data_steps import ordered_ids
from ._plan import plan_samples
from ._run import RankStep, Run
from ._verdict import Finding, Phase

BINS = 64
_MAX_STRIPS, _MAX_ROWS = 8, 256
_MAX_LENGTH = 1 << 53
_ALL_BUT = 1e-6


class SampleRow(msgspec.Struct, kw_only=True):
    """What one rank took.

    Attributes:
        rank: The rank.
        shares: Of each stretch, the share that this rank took, 0 to 1.
        samples: How many samples it took.
        others: How many of those are none of the strip's.
    """

    rank: int
    shares: list[float]
    samples: int
    others: int = 0


class SampleStrip(msgspec.Struct, kw_only=True):
    """The samples of one step of the control, or of one dataset, in order and cut into stretches.

    Attributes:
        step: The control's training step whose samples these are, or the number of steps before an evaluation; None
            for a pass over a dataset.
        dataset: Name of the dataset's class, of a pass.
        ordinal: Which pass over it, from 0.
        training: Of a pass, whether what it delivered was trained on; None where that is not known. False of an
            evaluation.
        whole: Whether every rank came to the end of its loader: only then is a sample that no rank took missing.
        length: How many samples there are.
        rows: What each rank took.
        num_ranks: How many ranks there were before some were left out.
        copies: How many ranks are meant to hold each sample.
        repeated: Of each stretch, how many samples were taken too often.
        missing: Of each stretch, how many samples were taken by no rank, or not whole.
        first: The first stretch that is not as it should be, where a finding says so.
        code: Cause of that finding.
    """

    step: int | None = None
    dataset: str = ""
    ordinal: int = 0
    training: bool | None = None
    whole: bool = True
    length: int
    rows: list[SampleRow]
    num_ranks: int
    copies: int = 1
    repeated: list[int]
    missing: list[int]
    first: int | None = None
    code: str = ""


class SamplesPicture(msgspec.Struct, kw_only=True):
    """Who took which sample: of one training step against the control's, and of the passes over the datasets.

    Attributes:
        strips: One for each.
        left_out: How many passes have none.
    """

    strips: list[SampleStrip]
    left_out: int = 0


def picture_samples(candidate: Run, control: Run | None, findings: Sequence[Finding]) -> SamplesPicture | None:
    """Return who took which sample; None where neither samples nor loaders were recorded."""
    found = [each for each in findings if each.layer == "data"]
    strips = [] if control is None else list(_of_step(candidate, control, found))
    passes = [one for one in passes_of(candidate.trial) if has_strip(one)]
    room = max(1, min(_MAX_STRIPS, _MAX_ROWS // max(1, len(candidate.ranks))) - len(strips))
    strips += [strip_of(one, found) for one in passes[:room]]
    left = len(passes) + sum(strip.step is not None for strip in strips) - len(strips)
    return SamplesPicture(strips=strips, left_out=left) if strips else None


def _of_step(candidate: Run, control: Run, found: list[Finding]) -> Iterator[SampleStrip]:
    """Yield the training step that a finding is about, or else the first that both sides recorded; then evaluations."""
    ours = control.ranks[min(control.ranks)] if control.ranks else {}
    common = [step for step in sorted(ours) if len(ordered_ids(ours[step])) and _held(candidate, step)]
    about = [each for each in found if each.name == "sample_ids" and each.step in ours]
    first = next((each for each in about if each.phase is not Phase.EVAL and each.step in common), None)
    for step in common[:1] if first is None or first.step is None else [first.step]:
        yield _training(step, ours[step], _held(candidate, step), first)
    evaluation = next((each for each in about if each.phase is Phase.EVAL), None)
    if evaluation is not None and evaluation.step is not None:
        yield from _evaluation(evaluation.step, ours[evaluation.step], _held(candidate, evaluation.step), evaluation)


def _held(candidate: Run, step: int) -> dict[int, RankStep]:
    return {rank: steps[step] for rank, steps in sorted(candidate.ranks.items()) if step in steps}


def _training(step: int, ours: RankStep, theirs: dict[int, RankStep], finding: Finding | None) -> SampleStrip:
    wanted = _Wanted(ordered_ids(ours))
    plan = plan_samples(ours, theirs)
    copies = len(plan.groups[0]) if plan.proved and plan.groups and finding is None else 1
    held = {rank: wanted.trained(mine) for rank, mine in theirs.items()}
    total = sum(held.values(), np.zeros(wanted.num))
    took = {rank: ordered_ids(mine) for rank, mine in theirs.items()}
    return _against(step, wanted, held, took, (total, copies * wanted.trained(ours)), copies, finding)


def _evaluation(step: int, ours: RankStep, theirs: dict[int, RankStep], finding: Finding) -> Iterator[SampleStrip]:
    """Yield who evaluated what; ranks that each evaluated the same count once."""
    wanted = _Wanted(_evaluated(ours))
    took = {rank: _evaluated(mine) for rank, mine in theirs.items()}
    leaders = {np.sort(ids).tobytes(): rank for rank, ids in reversed(took.items())}
    held = {rank: wanted.counted(ids) for rank, ids in took.items()}
    total = sum((held[rank] for rank in leaders.values()), np.zeros(wanted.num))
    if wanted.num:
        strip = _against(step, wanted, held, took, (total, wanted.counted(_evaluated(ours))), 1, finding)
        strip.training = False
        yield strip


def _evaluated(step: RankStep) -> np.ndarray:
    rows = [row.ids for row in step.samples if not row.training]
    return np.concatenate(rows) if rows else np.zeros(0, dtype=np.uint64)


class _Wanted:
    """The different samples of the control, in the order in which they came."""

    def __init__(self, ids: np.ndarray) -> None:
        self.ids, seen = np.unique(ids, return_index=True)
        self.order = np.argsort(seen)
        self.num = len(self.ids)

    def counted(self, ids: np.ndarray, part: float = 1.0) -> np.ndarray:
        """Return how often each is among some, in the order of identity; others are passed over."""
        taken = np.zeros(self.num)
        at = np.searchsorted(self.ids, ids)
        known = at < self.num
        known[known] = self.ids[at[known]] == ids[known]
        np.add.at(taken, at[known], part)
        return taken

    def trained(self, step: RankStep) -> np.ndarray:
        """Return how often each entered a model in training; a slice counts as the part that it is."""
        taken = np.zeros(self.num)
        for number, ids in step.batches.items():
            start, stop, total = step.pieces.get(number, (0, 1, 1))
            taken += self.counted(ids, (stop - start) / total if total > 0 else 1.0)
        return taken


def _against(
    step: int,
    wanted: _Wanted,
    held: dict[int, np.ndarray],
    took: dict[int, np.ndarray],
    counts: tuple[np.ndarray, np.ndarray],
    copies: int,
    finding: Finding | None,
) -> SampleStrip:
    """Return the strip of what ranks held of the control's samples; ``counts`` are theirs and what they should be."""
    total, due = (each[wanted.order] for each in counts)
    rows = [
        SampleRow(
            rank=rank,
            shares=_shares(np.minimum(held[rank], 1.0)[wanted.order]),
            samples=len(took[rank]),
            others=int(np.isin(took[rank], wanted.ids, invert=True).sum()),
        )
        for rank in some_ranks(held)
    ]
    strip = SampleStrip(
        step=step,
        length=wanted.num,
        rows=rows,
        num_ranks=len(held),
        copies=copies,
        repeated=_counts(total > due + _ALL_BUT),
        missing=_counts(total < due - _ALL_BUT),
    )
    return _outlined(strip, finding)


def has_strip(one: Pass) -> bool:
    """Whether samples of a pass have a place in their dataset."""
    return one.by_index and 0 < _length(one) <= _MAX_LENGTH


def _length(one: Pass) -> int:
    """Return how many samples a pass's dataset has, 0 where they have no index."""
    found = one.facts.get("root_length")
    return found if isinstance(found, int) and found > 0 else 0


def strip_of(one: Pass, found: Sequence[Finding]) -> SampleStrip:
    """Return who took which sample of a pass whose samples have an index; ``found`` are the findings of its data."""
    length = _length(one)
    finding = next((each for each in found if each.step == one.step and each.name == "sample_ids"), None)
    copies = len(one.parts[0]) if len(one.parts) == 1 and finding is None else 1
    ranks = {rank: each.ids[each.ids < length].astype(np.int64) for rank, each in sorted(one.ranks.items())}
    rows = [
        SampleRow(
            rank=rank,
            shares=shares_of(ranks[rank], length),
            samples=len(one.ranks[rank].ids),
            others=len(one.ranks[rank].ids) - len(ranks[rank]),
        )
        for rank in some_ranks(ranks)
    ]
    taken, counts = np.unique(np.concatenate(list(ranks.values())), return_counts=True)
    whole = one.exhausted and one.facts.get("length", length) == length
    strip = SampleStrip(
        dataset=one.dataset,
        ordinal=one.ordinal,
        training=one.training,
        whole=whole,
        length=length,
        rows=rows,
        num_ranks=len(ranks),
        copies=copies,
        repeated=_among(taken[counts > copies], length).tolist(),
        missing=((np.diff(_edges(length)) - _among(taken, length)) * whole).tolist(),
    )
    return _outlined(strip, finding)


def shares_of(ids: np.ndarray, length: int) -> list[float]:
    """Return which share of each stretch of a dataset is among some of its indices; at most ``BINS`` stretches."""
    shares = _among(np.unique(ids), length) / np.diff(_edges(length))
    return [round(float(share), 4) for share in shares]


def _among(indices: np.ndarray, length: int) -> np.ndarray:
    """Return how many of some ascending indices are in each stretch."""
    return np.diff(np.searchsorted(indices, _edges(length)))


def _outlined(strip: SampleStrip, finding: Finding | None) -> SampleStrip:
    """Mark the first stretch that is not as it should be; of samples that nobody was meant to take, the start."""
    if finding is None:
        return strip
    wrong = (i for i, pair in enumerate(zip(strip.repeated, strip.missing, strict=True)) if any(pair))
    strip.first = next(wrong, 0 if any(row.others for row in strip.rows) else None)
    strip.code = finding.cause.code
    return strip


def _edges(length: int) -> np.ndarray:
    num = min(BINS, length)
    return np.arange(num + 1) * length // max(num, 1)


def _counts(wrong: np.ndarray) -> list[int]:
    edges = _edges(len(wrong))
    return [int(wrong[low:high].sum()) for low, high in pairwise(edges)]


def _shares(taken: np.ndarray) -> list[float]:
    edges = _edges(len(taken))
    return [round(float(taken[low:high].mean()), 4) for low, high in pairwise(edges)]
