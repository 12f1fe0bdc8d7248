"""The two lines for a training script: seal after saving, verify before loading. Neither is a collective."""

import os
import sys
from pathlib import Path

from ddparity._errors import CheckpointDamaged
from ddparity.checkpoint._seal import Seal, seal
from ddparity.checkpoint._verify import Condition, Report, verify

_RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")


def seal_checkpoint(path: str | Path, *, step: int | None = None, save_id: str | None = None) -> Seal | None:
    """Seal a checkpoint whose save has returned; call it on every rank, rank 0 does the work.

    ``torch.distributed.checkpoint.save`` returns on rank 0 when all ranks have written their shards. Where ranks
    write files of their own, put a barrier before this line.

    Args:
        path: The directory, or the file, that was saved.
        step: Training step, to be told by ``ddparity checkpoint verify``.
        save_id: Name of the save; a random one when None.

    Returns:
        The seal, or None on other ranks.
    """
    return seal(Path(path), step=step, save_id=save_id) if _rank() == 0 else None


def verify_checkpoint(path: str | Path, *, required: bool = True) -> Report:
    """Check a checkpoint against its seal before loading it; every rank that calls it reads all files.

    Args:
        path: The directory, or the file, that will be loaded.
        required: Raise also where there is no seal.

    Raises:
        CheckpointDamaged: It is not what was sealed, or (``required``) was never sealed.
    """
    report = verify(Path(path))
    if report.condition is Condition.DAMAGED or (required and report.condition is not Condition.INTACT):
        raise CheckpointDamaged(f"{path}: {report.text}")
    return report


def _rank() -> int:
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank())
    found = next((os.environ[name] for name in _RANKS if name in os.environ), "0")
    return int(found) if found.isdecimal() else 0
