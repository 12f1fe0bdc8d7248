"""Samples without their padding: a collator pads to the longest of a batch, and who is longest depends on the batch.

Where a model is told by a mask which positions are padding, these are no part of a sample's identity: one device pads a
sample to another width than a rank that holds a quarter of the batch.
"""

from typing import Any

import torch

from ._guard import is_plain

_MASKS = frozenset({"attention_mask", "padding_mask", "input_mask"})


def padding_mask(named: list[tuple[str, torch.Tensor]]) -> torch.Tensor | None:
    """Return which positions of a batch are no padding, bool of shape (rows, length); None if nothing is padded.

    Args:
        named: The tensors of a call with their paths, such as ``1.attention_mask``.

    A mask that hides anything but one end of a row is none of padding.
    """
    for path, given in named:
        if path.rpartition(".")[2] in _MASKS and given.dim() == 2 and given.numel() and is_plain(given):
            mask = given.detach() != 0
            before, after = mask[:, :-1], mask[:, 1:]
            one_end = bool(((after <= before).all(1) | (after >= before).all(1)).all())
            return mask if one_end and not bool(mask.all()) else None
    return None


def without_padding(tensor: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """Return a tensor of (rows, length, ...) with each row's padding moved to its end and set to zero.

    A hash of rows to which zeros add nothing is then the same for any width. Tensors of another shape, of floating
    point, and those that hold more than one value where the mask says padding are returned as they are.
    """
    if mask is None or tensor.dim() < 2 or tensor.shape[:2] != mask.shape or tensor.is_floating_point():
        return tensor
    if tensor.is_complex() or tensor.device != mask.device:
        return tensor
    hidden = tensor[~mask]
    if not bool((hidden == hidden[:1]).all()):
        return tensor
    order = torch.argsort(mask.to(torch.uint8), dim=1, descending=True, stable=True)
    kept = tensor.masked_fill(_like(~mask, tensor), 0)
    return torch.take_along_dim(kept, _like(order, tensor), dim=1)


def _like(mask: torch.Tensor, tensor: torch.Tensor) -> Any:
    return mask.reshape(*mask.shape, *(1 for _ in tensor.shape[2:]))
