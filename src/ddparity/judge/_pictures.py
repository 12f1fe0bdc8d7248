"""All that the pictures of a trial or of a comparison are made of: bounded, plain, and measured only when asked for."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from ddparity._errors import TraceError

from ._comm_picture import CallsPicture, picture_calls
from ._compare import judge_trials
from ._context import Tally
from ._data_picture import SamplesPicture, picture_samples
from ._error_map import ErrorMap, map_errors
from ._memory_picture import MemoryPicture, picture_memory
from ._run import Run, load_run
from ._verdict import Finding, Verdict


class Pictures(msgspec.Struct, kw_only=True):
    """What a page draws. A part for which nothing was recorded is None.

    Attributes:
        errors: How far every tensor is from the control's; empty without a control.
        memory: What each rank held along the steps.
        samples: Which rank took which sample.
        calls: The calls between the ranks, around the first that does not fit.
    """

    schema: int = 1
    errors: ErrorMap
    memory: MemoryPicture | None = None
    samples: SamplesPicture | None = None
    calls: CallsPicture | None = None


class Comparison(msgspec.Struct, kw_only=True):
    """A verdict, and what a page draws beside it."""

    verdict: Verdict
    pictures: Pictures


def compare_and_measure(control_dir: Path, candidate_dir: Path, *, allow_stale: bool = False) -> Comparison:
    """Do what ``compare_trials`` does, and measure the pictures beside it."""
    tally = Tally(measured=[])
    verdict, control, candidate = judge_trials(control_dir, candidate_dir, allow_stale=allow_stale, tally=tally)
    errors = map_errors(tally.measured or [])
    return Comparison(verdict=verdict, pictures=_pictures(candidate, control, verdict.findings, errors))


def picture_trial(folder: Path, findings: Sequence[Finding] = ()) -> Pictures:
    """Measure the pictures of one trial, without a control.

    Args:
        folder: Folder of the trial.
        findings: What is known to be wrong with it; the first of each layer is marked.

    Raises:
        TraceError: If a file of the trial is missing or corrupt.
    """
    return picture_run(load_run(folder), findings)


def picture_run(run: Run, findings: Sequence[Finding]) -> Pictures:
    """Do what ``picture_trial`` does for a trial that was read already."""
    return _pictures(run, None, findings, ErrorMap(cells=[]))


def _pictures(candidate: Run, control: Run | None, findings: Sequence[Finding], errors: ErrorMap) -> Pictures:
    return Pictures(
        errors=errors,
        memory=picture_memory(candidate, control, findings),
        samples=picture_samples(candidate, control, findings),
        calls=_calls(candidate, findings),
    )


def _calls(candidate: Run, findings: Sequence[Finding]) -> CallsPicture | None:
    try:
        return picture_calls(candidate.comm, findings)
    except TraceError:  # the communication layer says so
        return None
