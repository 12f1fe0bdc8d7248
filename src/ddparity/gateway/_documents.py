"""The documents about trials and ladders: what is answered as JSON, and what the pages are made of.

Where ``ddparity ... --json`` prints a document, this is the same one.
"""

from pathlib import Path

import msgspec

from ddparity._errors import TraceError
from ddparity.gateway._tokens import Caller
from ddparity.gateway._trials import SeenTrial, TrialList, Trials
from ddparity.judge import (
    CallsPicture,
    CommTable,
    Examination,
    Finding,
    LayerVerdict,
    MemoryPicture,
)
from ddparity.trace import RankFacts, TrialFacts, read_json
from ddparity.trials import ComparisonRow, Ledger, rank_folders, read_facts
from ddparity.trials._ladders import LadderResult

DAMAGED = "DAMAGED"
_MAX_RANKS = 1024
_MAX_COMPARISONS = 100


class JobName(msgspec.Struct, kw_only=True):
    """A job, by the owner and the name he gave it."""

    job_id: str
    owner: str


class TrialLine(msgspec.Struct, kw_only=True):
    """One trial of a list.

    Attributes:
        id: Its id.
        name: Its name.
        control: Whether it is a control.
        status: RUNNING, COMPLETED, FAILED, TIMED_OUT, INTERRUPTED, or DAMAGED where its facts cannot be read.
        exit_code: Of its command.
        created: When it began, in seconds since the epoch.
        command: What was run.
        job: The job whose training it is.
    """

    id: str
    name: str
    control: bool
    status: str
    exit_code: int | None
    created: float
    command: list[str]
    job: JobName | None = None


class TrialLines(msgspec.Struct, kw_only=True):
    """Some trials, the newest first.

    Attributes:
        trials: The trials.
        next: The cursor of the next page; null at the end.
    """

    schema: int = 1
    trials: list[TrialLine]
    next: str | None = None


class TrialDocument(msgspec.Struct, kw_only=True):
    """One trial: the document of ``ddparity trials show --json``, its comparisons without their verdicts.

    Attributes:
        trial: Its facts.
        ranks: The facts of its ranks.
        damaged: Files of ranks that cannot be read, and why.
        comparisons: What it was held against, and what was held against it, the newest first.
        job: The job whose training it is.
    """

    schema: int = 1
    trial: TrialFacts
    ranks: list[RankFacts]
    damaged: list[str]
    comparisons: list[ComparisonRow]
    job: JobName | None = None


class MemoryDocument(msgspec.Struct, kw_only=True):
    """What each rank of a trial held.

    Attributes:
        trial: Its id.
        layer: What the memory layer comes to without a control.
        findings: Its deviations.
        memory: The curves; null where no memory was recorded.
    """

    schema: int = 1
    trial: str
    layer: LayerVerdict
    findings: list[Finding]
    memory: MemoryPicture | None


class CommunicationDocument(msgspec.Struct, kw_only=True):
    """What the ranks of a trial asked of each other.

    Attributes:
        trial: Its id.
        layer: What the communication layer comes to without a control.
        findings: Its deviations.
        calls: All calls counted, and where each rank is; null where the rings cannot be read.
        timeline: The calls around the first that does not fit, or of the last step; null where there are none.
    """

    schema: int = 1
    trial: str
    layer: LayerVerdict
    findings: list[Finding]
    calls: CommTable | None
    timeline: CallsPicture | None


class LadderLines(msgspec.Struct, kw_only=True):
    """Some ladders, the one that was written last first: the document of ``ddparity ladders --json``.

    Attributes:
        ladders: The ladders.
        damaged: Files that cannot be read, and why.
        next: The cursor of the next page; null at the end.
    """

    schema: int = 1
    ladders: list[LadderResult]
    damaged: list[str] = []
    next: str | None = None


def trial_lines(found: TrialList) -> TrialLines:
    """Return a list of trials as it is answered."""
    return TrialLines(trials=[_line(each) for each in found.trials], next=found.cursor)


def _line(seen: SeenTrial) -> TrialLine:
    job = None if seen.job is None else JobName(job_id=seen.job.job_id, owner=seen.job.owner)
    facts = seen.facts
    if facts is None:
        return TrialLine(
            id=seen.id, name=seen.name, control=False, status=DAMAGED, exit_code=None, created=0.0, command=[], job=job
        )
    return TrialLine(
        id=seen.id,
        name=facts.name,
        control=facts.control,
        status=facts.status.value,
        exit_code=facts.exit_code,
        created=facts.started,
        command=facts.command,
        job=job,
    )


def trial_document(trials: Trials, caller: Caller, folder: Path) -> TrialDocument:
    """Return all facts of a trial that the caller may see; of its comparisons only those with trials he may see too.

    Raises:
        TraceError: Its ``trial.json`` cannot be read.
    """
    facts = read_facts(folder)
    ranks: list[RankFacts] = []
    damaged: list[str] = []
    for each in rank_folders(folder)[:_MAX_RANKS]:
        try:
            ranks.append(read_json(each / "rank.json", RankFacts))
        except TraceError as error:
            damaged.append(str(error).replace(f"{folder}/", ""))
    job = trials.job_of(facts.id)
    return TrialDocument(
        trial=facts,
        ranks=ranks,
        damaged=damaged,
        comparisons=_comparisons(trials, caller, facts.id),
        job=None if job is None else JobName(job_id=job.job_id, owner=job.owner),
    )


def _comparisons(trials: Trials, caller: Caller, trial_id: str) -> list[ComparisonRow]:
    with Ledger(trials.store) as ledger:
        rows = ledger.comparison_rows(trial_id, _MAX_COMPARISONS)
    seen = set(trials.visible(caller, {each for row in rows for each in (row.control, row.candidate)}))
    return [row for row in rows if {row.control, row.candidate} <= seen]


def memory_document(found: Examination) -> MemoryDocument:
    """Return what is known of a trial's memory."""
    check = found.check
    return MemoryDocument(
        trial=check.trial,
        layer=check.layers["memory"],
        findings=[each for each in check.findings if each.layer == "memory"],
        memory=found.pictures.memory,
    )


def communication_document(found: Examination) -> CommunicationDocument:
    """Return what is known of what a trial's ranks asked of each other."""
    check = found.check
    return CommunicationDocument(
        trial=check.trial,
        layer=check.layers["communication"],
        findings=[each for each in check.findings if each.layer == "communication"],
        calls=found.calls,
        timeline=found.pictures.calls,
    )
