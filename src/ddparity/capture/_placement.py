"""How a rank's tensor is part of the logical one."""

from typing import NamedTuple

import torch


class Located(NamedTuple):
    """A rank's own part: the plain tensor, where it stands in the logical one, and in which words."""

    local: torch.Tensor
    offsets: tuple[int, ...] | None
    global_shape: tuple[int, ...] | None
    placement: str


def locate(tensor: torch.Tensor) -> Located:
    """Describe a tensor; a DTensor is described by its placements, without any communication."""
    if type(tensor).__name__ != "DTensor":
        return Located(tensor, None, None, "")
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    local = tensor._local_tensor  # to_local() would build autograd nodes and may wait on a collective
    placements = tensor.placements
    _, offsets = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, placements)
    words = "|".join(str(p) for p in placements)
    return Located(local, tuple(offsets), tuple(tensor.shape), words)
