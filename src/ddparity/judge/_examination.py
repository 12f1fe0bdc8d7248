"""One trial by itself: what its layers come to, and what a page draws of it."""

from pathlib import Path

import msgspec

from ddparity._errors import TraceError

from ._alone import TrialCheck, check_run
from ._comm_table import CommTable, tabulate
from ._pictures import Pictures, picture_run
from ._run import Run, load_run


class Examination(msgspec.Struct, kw_only=True):
    """What a trial says of itself, and what a page draws of it.

    Attributes:
        check: What its layers come to without a control.
        pictures: Memory, samples and calls.
        calls: The calls between its ranks, counted; None where its rings cannot be read.
    """

    schema: int = 1
    check: TrialCheck
    pictures: Pictures
    calls: CommTable | None = None


def check_and_measure(folder: Path) -> Examination:
    """Do what ``check_trial`` does, and measure the pictures beside it.

    Raises:
        TraceError: If a file of the trial is missing or corrupt.
    """
    run = load_run(folder)
    check = check_run(run)
    return Examination(check=check, pictures=picture_run(run, check.findings), calls=_calls(run))


def _calls(run: Run) -> CommTable | None:
    try:
        return tabulate(run.comm)
    except TraceError:  # the communication layer says so
        return None
