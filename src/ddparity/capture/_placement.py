"""How a rank's tensor is part of the logical one."""

from typing import Any, NamedTuple

import torch


class Located(NamedTuple):
    """A rank's own part: the plain tensor, where it stands in the logical one, and in which words."""

    local: torch.Tensor
    offsets: tuple[int, ...] | None
    global_shape: tuple[int, ...] | None
    placement: str


def is_dtensor(tensor: torch.Tensor) -> bool:
    """Whether a tensor is one of ``torch.distributed.tensor``."""
    return type(tensor).__name__ == "DTensor"


def own_value(tensor: Any) -> torch.Tensor | None:
    """Return what this rank knows of a tensor without any communication: None if that is only a part of it."""
    if not is_dtensor(tensor):
        return tensor
    return tensor._local_tensor if all(p.is_replicate() for p in tensor.placements) else None


def own_rows(tensor: Any) -> torch.Tensor | None:
    """Return this rank's rows of a tensor along dimension 0, whole in every other dimension; None if it has no such."""
    if not is_dtensor(tensor):
        return tensor
    return tensor._local_tensor if all(p.is_replicate() or p.is_shard(0) for p in tensor.placements) else None


def locate(tensor: Any) -> Located:
    """Describe a tensor; a DTensor is described by its placements, without any communication."""
    if not is_dtensor(tensor):
        return Located(tensor, None, None, "")
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    local = tensor._local_tensor  # to_local() would build autograd nodes and may wait on a collective
    placements = tensor.placements
    _, offsets = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, placements)
    words = "|".join(str(p) for p in placements)
    return Located(local, tuple(offsets), tuple(tensor.shape), words)
