"""Sealing what a framework saved, and verifying what it is about to resume from, on request only."""

import sys
from pathlib import Path

from ddparity._errors import DdparityError
from ddparity.checkpoint import Condition, seal_checkpoint, seal_path, verify_checkpoint


class Seals:
    """The seals of one training.

    Args:
        required: Whether a checkpoint without a seal may not be resumed from.
    """

    def __init__(self, *, required: bool = False) -> None:
        self.required = required
        self._made: list[Path] = []

    def saved(self, checkpoint: str | Path, step: int | None) -> None:
        """Seal a checkpoint whose save has ended on all ranks; called on every rank, rank 0 does the work.

        A seal that cannot be made is told and leaves the training alone: the checkpoint is then simply not sealed.
        """
        path = _local(checkpoint)
        try:
            if path is not None and seal_checkpoint(path, step=step) is not None:
                self._made.append(path)
        except (DdparityError, OSError) as error:
            _tell(f"{checkpoint} was not sealed: {error}")
        self.tidy()

    def tidy(self) -> None:
        """Remove the seals beside single files that the framework has removed, as it keeps the last few only."""
        for path in [path for path in self._made if not path.exists()]:
            self._made.remove(path)
            seal_path(path).unlink(missing_ok=True)

    def check(self, checkpoint: str | Path) -> None:
        """Verify a checkpoint before training goes on from it.

        Raises:
            CheckpointDamaged: It is not what was sealed, or was never sealed and has to be.
        """
        path = _local(checkpoint)
        if path is not None:
            report = verify_checkpoint(path, required=self.required)
            if report.condition is not Condition.INTACT:
                _tell(f"{checkpoint} goes unverified: {report.text}")


def _local(checkpoint: str | Path) -> Path | None:
    """Return the path itself, behind links such as ``last.ckpt``; None for one that is on no disk of this machine."""
    if "://" in str(checkpoint):
        _tell(f"{checkpoint} is not a local path: it is neither sealed nor verified.")
        return None
    return Path(checkpoint).resolve()


def _tell(text: str) -> None:
    print(f"ddparity: {text}", file=sys.stderr, flush=True)
