"""What commands print with ``--json`` where no other room has a type for it; docs/reference/json.md is made of them."""

from typing import Any

import msgspec

from ddparity.cli._health import Check
from ddparity.judge import Finding, KnownCause
from ddparity.trace import RankFacts, TrialFacts
from ddparity.trials import Comparison, TrialRow
from ddparity.trials._ladders import LadderResult

SCHEMA = 1


class TrialList(msgspec.Struct, kw_only=True):
    """The trials of a store, the newest first."""

    schema: int = SCHEMA
    store: str
    trials: list[TrialRow]


class TrialShown(msgspec.Struct, kw_only=True):
    """One trial; its own facts and those of its ranks are also the files ``trial.json`` and ``rank.json``.

    Attributes:
        damaged: What of its files cannot be read, in words.
        comparisons: What it was held against.
    """

    schema: int = SCHEMA
    trial: TrialFacts
    ranks: list[RankFacts]
    damaged: list[str]
    comparisons: list[Comparison]


class ProcessNow(msgspec.Struct, kw_only=True):
    """A process of a run, as it stands at this moment.

    Attributes:
        state: What the kernel says of it: running, sleeping, stopped, ...
        answers: Whether it told its stacks when it was asked.
        quiet_seconds: Time since its last call or step.
        step: The step that it is in.
        last_call: Number, group and operation of its last call.
        stacks: The frames of each thread, the innermost first.
    """

    rank: int
    pid: int
    host: str
    state: str
    answers: bool
    quiet_seconds: float
    step: int
    last_call: str
    stacks: dict[str, list[str]]


class RankThen(msgspec.Struct, kw_only=True):
    """A rank of a run that has ended: ``at`` says in words how it ended, or which call was its last."""

    rank: int
    at: str


class HangReport(msgspec.Struct, kw_only=True):
    """Who waits for whom.

    Attributes:
        trial: Id of the trial; None where there are dumps of the flight recorder alone.
        hangs: Whether it lives and nothing has moved.
        outcome: How it ended; None of a run that lives, or is known by dumps alone.
        quiet_seconds: Time since any rank's last call or step; None of a run that has ended.
        checked: Calls that were compared; None where a run moves.
        missing_ranks: Ranks of which nothing is recorded.
        processes: The processes of a run that lives here.
        ranks: The ranks of a run that has ended, or is known by dumps alone.
        findings: Calls that did not fit, the first cause first.
        flight_recorder: What dumps of the flight recorder say of the same run, in words.
    """

    schema: int = SCHEMA
    trial: str | None = None
    hangs: bool = False
    outcome: str | None = None
    quiet_seconds: float | None = None
    checked: int | None = None
    missing_ranks: list[int] = []
    processes: list[ProcessNow] = []
    ranks: list[RankThen] = []
    findings: list[Finding] = []
    flight_recorder: list[str] = []


class Doctor(msgspec.Struct, kw_only=True):
    """What can be recorded in this environment.

    Attributes:
        recordable: What can be recorded, each with ``yes`` or the reason why not.
        suggestion: The one command to run next.
    """

    schema: int = SCHEMA
    checks: list[Check]
    recordable: dict[str, str]
    suggestion: str


class Setting(msgspec.Struct, kw_only=True):
    """One setting.

    Attributes:
        source: What its value was taken from: an option, a variable, a file, or ``default``.
    """

    name: str
    value: Any
    source: str
    meaning: str


class Settings(msgspec.Struct, kw_only=True):
    """Every setting with where it comes from."""

    schema: int = SCHEMA
    settings: list[Setting]


class Entry(msgspec.Struct, kw_only=True):
    """One file of a bundle, its size in bytes, and why it is safe to hand out."""

    name: str
    bytes: int
    why: str


class Entries(msgspec.Struct, kw_only=True):
    """What a bundle would hold."""

    schema: int = SCHEMA
    entries: list[Entry]


class Causes(msgspec.Struct, kw_only=True):
    """Causes that a finding may name."""

    schema: int = SCHEMA
    causes: list[KnownCause]


class LadderList(msgspec.Struct, kw_only=True):
    """The ladders of a store; ``damaged`` names files that cannot be read."""

    schema: int = SCHEMA
    store: str
    ladders: list[LadderResult]
    damaged: list[str]
