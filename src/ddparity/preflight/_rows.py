"""The rows of a review, in the order in which they are settled, and the answer they make up."""

from dataclasses import dataclass
from typing import Any

import msgspec

PASS, DEVIATES, INCONCLUSIVE, NOT_TESTED = "PASS", "DEVIATES", "INCONCLUSIVE", "NOT_TESTED"


@dataclass(frozen=True)
class RowKind:
    """One row that a review can have.

    Attributes:
        name: What ``--only`` calls it.
        section: The part of the review it stands in.
        title: What is looked at.
        quick: Whether ``--quick`` has it.
        ground: The row without which it means nothing, or an empty text.
    """

    name: str
    section: str
    title: str
    quick: bool = True
    ground: str = ""


SINGLE, LAUNCH, FAULTS, PARAMETERS = "single device", "launch", "injected faults", "communication parameters"
ROWS = (
    RowKind("repeat", SINGLE, "one device repeats itself, without NaN, and its parameters move"),
    RowKind("gradients", SINGLE, "gradient norms are finite and level", ground="repeat"),
    RowKind("learns", SINGLE, "the loss falls on a fixed batch", ground="repeat"),
    RowKind("control", SINGLE, "the control is there and fresh", ground="repeat"),
    RowKind("launch", LAUNCH, "every rank comes up, with the same backend, versions and time-outs"),
    RowKind("data", LAUNCH, "the ranks' shares of the data", ground="launch"),
    RowKind("memory", LAUNCH, "memory at the target batch", ground="launch"),
    RowKind("calls", LAUNCH, "the ranks' collectives fit", ground="launch"),
    RowKind("ladder", LAUNCH, "the numbers of one device at every rung up to the world size", ground="repeat"),
    RowKind("exit", FAULTS, "a rank leaves with an error", ground="launch"),
    RowKind("kill", FAULTS, "a rank is killed (SIGKILL)", ground="launch"),
    RowKind("stop", FAULTS, "a rank stands still (SIGSTOP) past the time-out", quick=False, ground="launch"),
    RowKind("stall", FAULTS, "a rank's data stalls past the time-out", quick=False, ground="launch"),
    RowKind("resume", FAULTS, "a checkpoint is written, a rank killed, and the run resumed", ground="launch"),
    RowKind("truncated", FAULTS, "the newest checkpoint is cut short", ground="resume"),
    RowKind("full-disk", FAULTS, "the disk is full when a checkpoint is written", quick=False, ground="resume"),
    RowKind("bucket-size", PARAMETERS, "DDP bucket_cap_mb 1 and 100", quick=False, ground="ladder"),
    RowKind("bucket-view", PARAMETERS, "DDP gradient_as_bucket_view", quick=False, ground="ladder"),
    RowKind("find-unused", PARAMETERS, "DDP find_unused_parameters: needed or not", quick=False, ground="ladder"),
    RowKind("static-graph", PARAMETERS, "DDP static_graph", quick=False, ground="ladder"),
    RowKind("interface", PARAMETERS, "the network interface", quick=False, ground="ladder"),
)
"""Every row; those of the last section only if all before them pass."""


class Row(msgspec.Struct, kw_only=True):
    """What became of one row.

    Attributes:
        name: As in ``ROWS``.
        section: The part of the review.
        title: What was looked at.
        status: PASS, DEVIATES, INCONCLUSIVE or NOT_TESTED.
        evidence: What was seen, in words with numbers.
        numbers: The same for programs.
        trials: Ids of the trials that it stands on.
        seconds: How long it took.
        next: A command or an advice, where there is something to do.
    """

    name: str
    section: str
    title: str
    status: str
    evidence: str = ""
    numbers: dict[str, Any] = {}
    trials: list[str] = []
    seconds: float = 0.0
    next: str = ""


class Review(msgspec.Struct, kw_only=True):
    """The answer of ``ddparity preflight``.

    Attributes:
        status: The worst of its rows; rows that were not tested do not count.
        nproc: The number of processes that was reviewed.
        command: The training command, as it was given.
        rows: Every row, in the order in which they are settled.
        seconds: How long all of it took.
    """

    schema: int = 1
    status: str
    nproc: int
    command: list[str]
    rows: list[Row]
    seconds: float = 0.0


def status_of(rows: list[Row]) -> str:
    """Return the status of a review: one row that deviates is enough; rows that were not tested do not count."""
    seen = {row.status for row in rows}
    return next((each for each in (DEVIATES, INCONCLUSIVE, PASS) if each in seen), INCONCLUSIVE)
