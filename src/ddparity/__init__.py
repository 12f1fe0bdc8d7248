"""Find where a distributed PyTorch run stops agreeing with one device, and say why.

The command line is the main way in: ``ddparity record``, ``ddparity compare``. From Python:

* :func:`feed`, :func:`mark`, :func:`log_metric` tell the recorder what it cannot see from outside; each returns its
  argument unchanged and does nothing else when nothing records.
* :func:`record` runs a command as a trial, :func:`compare` holds one trial against another.
* :func:`seal_checkpoint` after saving, :func:`verify_checkpoint` before loading: is it one whole save?

Importing this module loads neither torch nor numpy, and patches nothing.
"""

from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddparity._errors import (
    CheckpointDamaged,
    CommandFailed,
    DdparityError,
    DependencyMissing,
    ExitCode,
    StaleControl,
    TraceError,
    TrialNotFound,
    UsageError,
)
from ddparity.capture._api import feed, mark
from ddparity.capture._metric_file import log_metric

if TYPE_CHECKING:
    from ddparity.checkpoint import seal_checkpoint, verify_checkpoint
    from ddparity.judge import Verdict
    from ddparity.trials import RecordSpec, record

__all__ = [
    "CheckpointDamaged",
    "CommandFailed",
    "DdparityError",
    "DependencyMissing",
    "ExitCode",
    "RecordSpec",
    "StaleControl",
    "TraceError",
    "TrialNotFound",
    "UsageError",
    "compare",
    "feed",
    "log_metric",
    "mark",
    "record",
    "seal_checkpoint",
    "verify_checkpoint",
]


def compare(control: str, candidate: str, *, store: str | Path | None = None, allow_stale: bool = False) -> "Verdict":
    """Hold a candidate against a control and return the verdict, which shows itself in a notebook.

    Args:
        control: Name, id or unique beginning of an id of the control.
        candidate: The same for the candidate.
        store: Folder of the trials; by default ``DDPARITY_HOME``, else ``.ddparity`` here.
        allow_stale: Judge although the code changed between the two; the verdict notes it.

    Raises:
        TrialNotFound: There is no such trial.
        StaleControl: The code changed between the two, and ``allow_stale`` was not given.
        TraceError: A file of one of them cannot be read.
    """
    from ddparity.judge import compare_and_measure, compare_trials
    from ddparity.report import ShownVerdict
    from ddparity.trials import Store

    found = Store.resolve(None if store is None else str(store))
    folders = found.find(control), found.find(candidate)
    verdict = compare_trials(*folders, allow_stale=allow_stale)
    return ShownVerdict.of(verdict, lambda: compare_and_measure(*folders, allow_stale=True).pictures)


def __getattr__(name: str) -> Any:
    if name in ("RecordSpec", "record"):
        from ddparity import trials

        return getattr(trials, name)
    if name in ("seal_checkpoint", "verify_checkpoint"):
        from ddparity import checkpoint

        return getattr(checkpoint, name)
    if name == "__version__":
        return metadata.version("ddparity")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
