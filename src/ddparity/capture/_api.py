"""The three lines for what cannot be seen from outside; each is an identity function when nothing records."""

import sys
from typing import Any, TypeVar

T = TypeVar("T")


def _session() -> Any:
    module = sys.modules.get("ddparity.capture._session")
    return module.current() if module is not None else None


def feed(batch: T) -> T:
    """Tell the recorder which batch comes next; return it unchanged.

    Needed only where the samples do not enter a module, as in a hand-written functional model.
    """
    session = _session()
    if session is not None:
        session.fed(batch)
    return batch


def mark(name: str, tensor: T) -> T:
    """Record a tensor that no module returns, under ``name``; return it unchanged.

    The tensor may be of any dense dtype; rows along dimension 0 are keyed by sample where they belong to samples.
    """
    session = _session()
    if session is not None:
        session.marked(name, tensor)
    return tensor


def log_metric(name: str, value: float) -> float:
    """Record a number, such as an accuracy, as ``metric:NAME``; return it unchanged."""
    session = _session()
    if session is not None:
        session.metric(name, value)
    return value
