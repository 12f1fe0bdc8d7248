"""What the callbacks share: the numbers and the settings that a framework hands them, given to the recorder."""

import os
from collections.abc import Iterable, Mapping
from typing import Any

from ddparity.capture._api import current_session, hyperparameters
from ddparity.capture._metric_file import METRICS_VARIABLE, note_metric

_COUNTERS = frozenset({"epoch", "step", "global_step"})
"""They say when a number was taken, and are none themselves."""


def wanted() -> bool:
    """Whether anybody takes numbers: a recorder, or a job of the gateway."""
    return METRICS_VARIABLE in os.environ or current_session() is not None


def log(values: Mapping[str, Any], step: int | None, *, evaluation: bool) -> None:
    """Hand on what of ``values`` is a number.

    Args:
        values: Name -> number, tensor of one element, or anything else, which is left out.
        step: The framework's own count.
        evaluation: Whether they are results of an evaluation; only these are held against the control's.
    """
    for name, value in values.items():
        if name not in _COUNTERS and (number := as_number(value)) is not None:
            note_metric(name, number, step, compared=evaluation)


def as_number(value: Any) -> float | None:
    """Return a number as float, None for what is none; a tensor is read in a way that no recorder takes for the user's.

    A bool is no number, nor is a tensor of several elements.
    """
    if isinstance(value, bool):
        return None
    if isinstance(value, (int, float)):
        return float(value)
    if hasattr(value, "detach"):
        return float(value.detach().reshape(-1).cpu().double().numpy()[0]) if value.numel() == 1 else None
    return float(value.item()) if getattr(value, "size", None) == 1 and hasattr(value, "dtype") else None


def settings(values: Mapping[str, Any], words: Iterable[str] = ()) -> None:
    """Make settings facts of the trial: numbers and switches, and of the texts only those named in ``words``.

    Other texts may be paths, names or keys, and are left out.
    """
    texts = set(words)
    found = {
        name: value
        for name, value in values.items()
        if isinstance(value, (bool, int, float)) or (isinstance(value, str) and name in texts)
    }
    if found:
        hyperparameters(found)
