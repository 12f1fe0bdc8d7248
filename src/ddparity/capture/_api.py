"""What is said from inside the script; each is an identity function when nothing records. See _metric_file too."""

import sys
from typing import Any, TypeVar

T = TypeVar("T")


def current_session() -> Any:
    """Return what records in this process, or None."""
    module = sys.modules.get("ddparity.capture._session")
    return module.current() if module is not None else None


def feed(batch: T) -> T:
    """Tell the recorder which batch comes next; return it unchanged, or pinned to the control's samples.

    Needed where the samples do not enter a module, as in a hand-written functional model, and under
    ``record --pinned`` where no ``DataLoader`` hands them out: there this rank's rows of what the control was fed
    come back (tensors of shape (local batch, ...), same dtypes).

    Raises:
        PinnedDataError: Under ``--pinned``, if the control's batch does not divide by the ranks and their batch size.
    """
    session = current_session()
    return batch if session is None else session.fed(batch)


def mark(name: str, tensor: T) -> T:
    """Record a tensor that no module returns, under ``name``; return it unchanged.

    The tensor may be of any dense dtype; rows along dimension 0 are keyed by sample where they belong to samples.
    """
    session = current_session()
    if session is not None:
        session.marked(name, tensor)
    return tensor


def hyperparameters(values: dict[str, Any]) -> None:
    """Make settings facts of the trial, so that what varied between two trials names them; for the integrations.

    ``values`` holds numbers, switches and short words: none of them a sample, a path or a secret.
    """
    session = current_session()
    if session is not None:
        session.hyperparameters(values)
