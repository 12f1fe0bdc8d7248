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
from ._verdict import Finding

BINS = 64
_MAX_STRIPS = 8
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
        step: The control's training step whose samples these are; None for a pass over a dataset.
        dataset: Name of the dataset's class, of a pass.
        ordinal: Which pass over it, from 0.
        training: Whether what it delivered was trained on; None where that is not known.
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
    passes = [one for one in passes_of(candidate.trial) if one.by_index and _length(one)]
    strips += [_of_pass(one, found) for one in passes[: _MAX_STRIPS - len(strips)]]
    left = len(passes) + sum(strip.step is not None for strip in strips) - len(strips)
    return SamplesPicture(strips=strips, left_out=left) if strips else None


def _of_step(candidate: Run, control: Run, found: list[Finding]) -> Iterator[SampleStrip]:
    """Yield the step of the first finding about samples, or else the first that both sides recorded."""
    finding = next((each for each in found if each.name == "sample_ids" and each.site == "input"), None)
    ours = control.ranks[min(control.ranks)] if control.ranks else {}
    common = [step for step in sorted(ours) if len(ordered_ids(ours[step])) and _held(candidate, step)]
    at = common[:1] if finding is None or finding.step not in common else [finding.step]
    for step in at:
        yield _step_strip(step, ours[step], _held(candidate, step), finding)


def _held(candidate: Run, step: int) -> dict[int, RankStep]:
    return {rank: steps[step] for rank, steps in sorted(candidate.ranks.items()) if step in steps}


def _step_strip(step: int, ours: RankStep, theirs: dict[int, RankStep], finding: Finding | None) -> SampleStrip:
    wanted, first_seen = np.unique(ordered_ids(ours), return_index=True)
    place = np.argsort(np.argsort(first_seen))
    own = _taken(ours, wanted)
    plan = plan_samples(ours, theirs)
    blamed = finding is not None and finding.step == step
    copies = len(plan.groups[0]) if plan.proved and plan.groups and not blamed else 1
    held = {rank: _taken(mine, wanted) for rank, mine in theirs.items()}
    total = sum(held.values(), np.zeros(len(wanted)))
    order = np.argsort(place)
    repeated, missing = total > copies * own + _ALL_BUT, total < copies * own - _ALL_BUT
    rows = [
        SampleRow(
            rank=rank,
            shares=_shares(np.minimum(held[rank], 1.0)[order]),
            samples=len(ordered_ids(theirs[rank])),
            others=int(np.isin(ordered_ids(theirs[rank]), wanted, invert=True).sum()),
        )
        for rank in some_ranks(held)
    ]
    strip = SampleStrip(
        step=step,
        length=len(wanted),
        rows=rows,
        num_ranks=len(held),
        copies=copies,
        repeated=_counts(repeated[order]),
        missing=_counts(missing[order]),
    )
    return _outlined(strip, finding if blamed else None)


def _taken(step: RankStep, wanted: np.ndarray) -> np.ndarray:
    """Return how often each of the wanted samples entered a model in training; a slice counts as the part it is."""
    taken = np.zeros(len(wanted))
    for number, ids in step.batches.items():
        start, stop, total = step.pieces.get(number, (0, 1, 1))
        part = (stop - start) / total if total > 0 else 1.0
        at = np.minimum(np.searchsorted(wanted, ids), max(len(wanted) - 1, 0))
        np.add.at(taken, at[wanted[at] == ids] if len(wanted) else at[:0], part)
    return taken


def _length(one: Pass) -> int:
    """Return how many samples a pass's dataset has, 0 where they have no index."""
    found = one.facts.get("root_length")
    return found if isinstance(found, int) and found > 0 else 0


def _of_pass(one: Pass, found: list[Finding]) -> SampleStrip:
    length = _length(one)
    finding = next((each for each in found if each.step == one.step and each.site != "input"), None)
    copies = len(one.parts[0]) if len(one.parts) == 1 and finding is None else 1
    counts = np.zeros(length, dtype=np.int32)
    rows = []
    drawn = set(some_ranks(one.ranks))
    for rank, each in sorted(one.ranks.items()):
        ids = each.ids[each.ids < length].astype(np.int64)
        np.add.at(counts, ids, 1)
        if rank in drawn:
            shares = _shares(np.minimum(np.bincount(ids, minlength=length), 1).astype(float))
            rows.append(SampleRow(rank=rank, shares=shares, samples=len(each.ids), others=len(each.ids) - len(ids)))
    subset = isinstance(one.facts.get("length"), int) and one.facts["length"] != length
    whole = one.exhausted and not subset
    strip = SampleStrip(
        dataset=one.dataset,
        ordinal=one.ordinal,
        training=one.training,
        whole=whole,
        length=length,
        rows=rows,
        num_ranks=len(one.ranks),
        copies=copies,
        repeated=_counts(counts > copies),
        missing=_counts(counts == 0) if whole else [0] * len(_edges(length)[1:]),
    )
    return _outlined(strip, finding)


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
