"""The data of one trial as a report: the audits, who took what, and how long training waited for it."""

from pathlib import Path

import msgspec
import numpy as np

from ddparity.trace import Trial, read_trial

from ._data_passes import Pass, RankPass, passes_of
from ._data_picture import has_strip, shares_of, strip_of
from ._verdict import Finding, Status
from .data import audit_trial

LOADER_BOUND = 0.3
"""Share of the time spent waiting for data above which a run is called loader-bound."""
_MIN_BATCHES = 4


class AuditRow(msgspec.Struct, kw_only=True):
    """One question and its answer.

    Attributes:
        name: The audit: shards, coverage, order, batches, split, random or labels.
        status: What it came to.
        text: Why, in words with numbers.
    """

    name: str
    status: Status
    text: str


class RankRow(msgspec.Struct, kw_only=True):
    """What one rank took in one pass.

    Attributes:
        bins: Share of each stretch of the dataset that this rank took, 0 to 1; empty where samples have no index.
        wait_ms: Milliseconds a batch that training waited, in the median, the first batch left out.
        waiting: Share of the time from the first to the last batch.
    """

    rank: int
    batches: int
    samples: int
    unique: int
    bins: list[float] = []
    wait_ms: float | None = None
    waiting: float | None = None


class PassRow(msgspec.Struct, kw_only=True):
    """One pass over a dataset on all ranks.

    Attributes:
        dataset: Name of the dataset's class, or of the one it is a subset of.
        ordinal: Which pass over it, from 0.
        training: Whether what it delivered was trained on, False where it was evaluated; None where that is not known.
        step: Training step at which it began.
        length: Number of samples of the dataset, where they have an index.
        ranks: What each rank took.
        whole: Whether every rank came to the end of its loader over the whole dataset.
        repeated: Of each stretch of the dataset, how many samples were taken too often; empty without an index.
        missing: Of each stretch, how many samples no rank took, where ``whole``.
    """

    dataset: str
    ordinal: int
    training: bool | None
    step: int
    length: int | None
    ranks: list[RankRow]
    whole: bool = False
    repeated: list[int] = []
    missing: list[int] = []


class DataReport(msgspec.Struct, kw_only=True):
    """All that is known of a trial's data.

    Attributes:
        trial: Id of the trial.
        status: The worst of its audits.
        audits: Each question with its answer.
        passes: Which rank took what, pass by pass.
        supply: How long training waited for its loaders, in words.
        notes: What else has to be known.
        findings: The deviations, as in ``compare --json``.
    """

    schema: int = 1
    trial: str
    status: Status
    audits: list[AuditRow]
    passes: list[PassRow]
    supply: list[str] = []
    notes: list[str] = []
    findings: list[Finding] = []


def report_data(folder: Path) -> DataReport:
    """Audit the data of a recorded trial.

    Raises:
        TraceError: A file of the trial is missing or corrupt.
    """
    trial = read_trial(folder)
    passes = passes_of(trial)
    audits = audit_trial(trial, passes=passes)
    findings = [audit.finding for audit in audits if audit.finding is not None]
    return DataReport(
        trial=trial.facts.id,
        status=_status([audit.status for audit in audits]),
        audits=[AuditRow(name=audit.name, status=audit.status, text=audit.text) for audit in audits],
        passes=[_pass_row(one, findings) for one in passes],
        supply=[text for one in passes if one.training for text in _supply(one)],
        notes=_notes(trial, passes),
        findings=findings,
    )


def _status(found: list[Status]) -> Status:
    order = (Status.DEVIATES, Status.INCONCLUSIVE, Status.PASS)
    return next((status for status in order if status in found), Status.NOT_TESTED)


def _pass_row(one: Pass, findings: list[Finding]) -> PassRow:
    length = one.facts.get("root_length")
    length = length if isinstance(length, int) and has_strip(one) else None
    ranks = [_rank_row(each, length) for _, each in sorted(one.ranks.items())]
    row = PassRow(
        dataset=one.dataset, ordinal=one.ordinal, training=one.training, step=one.step, length=length, ranks=ranks
    )
    if has_strip(one):
        strip = strip_of(one, findings)
        row.whole, row.repeated, row.missing = strip.whole, strip.repeated, strip.missing
    return row


def _rank_row(each: RankPass, length: int | None) -> RankRow:
    wait, share = _waiting(each)
    return RankRow(
        rank=each.rank,
        batches=each.num_batches,
        samples=len(each.ids),
        unique=len(np.unique(each.ids)),
        bins=shares_of(each.ids[each.ids < length].astype(np.int64), length) if length and len(each.ids) else [],
        wait_ms=wait,
        waiting=share,
    )


def _waiting(each: RankPass) -> tuple[float | None, float | None]:
    """Return the median wait in ms and its share of the time; None where too few batches came to say."""
    if each.num_batches < _MIN_BATCHES:
        return None, None
    waits = each.wait_ns[1:]
    total = int(each.time_ns[-1] - each.time_ns[0])
    share = float(waits.sum()) / total if total > 0 else None
    return round(float(np.median(waits)) / 1e6, 3), None if share is None else round(min(share, 1.0), 4)


def _supply(one: Pass) -> list[str]:
    rows = {each.rank: _waiting(each) for each in one.ranks.values()}
    known = {rank: (wait, share) for rank, (wait, share) in rows.items() if wait is not None and share is not None}
    if not known:
        return []
    slowest = max(known, key=lambda rank: known[rank][1])
    wait, share = known[slowest]
    where = f"{one.dataset}, pass {one.ordinal}"
    others = "" if len(known) == 1 else f", most of all on rank {slowest}"
    if share >= LOADER_BOUND:
        return [f"{where}: loader-bound: {share:.0%} of the time waits for data ({wait:.3g} ms a batch){others}"]
    return [f"{where}: {share:.1%} of the time waits for data ({wait:.3g} ms a batch){others}"]


def _notes(trial: Trial, passes: list[Pass]) -> list[str]:
    notes = []
    if trial.missing_ranks:
        notes.append(f"PARTIAL: no trace of ranks {', '.join(map(str, trial.missing_ranks))}")
    if not passes:
        notes.append("no DataLoader was iterated; what enters the model is judged by ddparity compare")
    return notes
