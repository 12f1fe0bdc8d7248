"""Samples without their padding: a collator pads to the longest of a batch, and who is longest depends on the batch.

Where a model is told which positions are padding, by a mask, by lengths or by its embedding's ``padding_idx``, these
are no part of a sample's identity: one device pads a sample to another width than a rank that holds a quarter of the
batch.
"""

import inspect
from typing import Any

import torch
from torch import nn

from ._guard import is_plain
from ._identity import IdentityMap

_MASKS = frozenset({"attention_mask", "padding_mask", "input_mask"})
_INVERTED_MASKS = frozenset({"key_padding_mask", "src_key_padding_mask", "tgt_key_padding_mask"})
_LENGTHS = frozenset({"lengths", "lens", "seq_lens", "seq_lengths", "input_lengths", "src_lengths"})
_INTEGERS = (torch.int64, torch.int32)


class Padding:
    """Which positions of a call's tensors are padding, as far as the call and the module say."""

    def __init__(self) -> None:
        self._fills: IdentityMap[frozenset[int]] = IdentityMap()
        self._arguments: IdentityMap[tuple[str, ...]] = IdentityMap()

    def strip(
        self, module: nn.Module | None, named: list[tuple[str, torch.Tensor]], tensors: list[torch.Tensor]
    ) -> list[torch.Tensor]:
        """Return a call's tensors, each of (rows, ...), without their padding.

        Args:
            module: The module that is called, if it is known.
            named: The tensors of the call with their paths, such as ``0.1`` or ``1.attention_mask``.
            tensors: Those that tell samples apart.
        """
        if module is not None:
            named = [(self._argument(module, path), given) for path, given in named]
        mask, fills = padding_mask(named), self.fills(module)
        if mask is not None or not fills:
            return [without_padding(tensor, mask) for tensor in tensors]
        texts = [tensor for tensor in tensors if tensor.dim() == 2 and tensor.dtype in _INTEGERS]
        found = {text.shape: fill_mask(text, fills) for text in reversed(texts)}  # of one shape the first one's
        return [without_padding(tensor, found.get(tensor.shape[:2])) for tensor in tensors]

    def fills(self, module: nn.Module | None) -> frozenset[int]:
        """Return the tokens that a module's embeddings take for padding."""
        if module is None:
            return frozenset()
        known = self._fills.get(module)
        if known is None:
            given = (getattr(each, "padding_idx", None) for each in module.modules())
            known = frozenset(each for each in given if isinstance(each, int))
            self._fills.put(module, known)
        return known

    def _argument(self, module: nn.Module, path: str) -> str:
        """Return a path with the name of a positional argument in place of its number."""
        which, _, number = path.partition(".")
        if which != "0" or not number.isdigit():
            return path
        names = self._arguments.get(module)
        if names is None:
            names = _arguments_of(module)
            self._arguments.put(module, names)
        return f"1.{names[int(number)]}" if int(number) < len(names) else path


def _arguments_of(module: nn.Module) -> tuple[str, ...]:
    inner = getattr(module, "module", None)
    try:
        found = inspect.signature((inner if isinstance(inner, nn.Module) else module).forward).parameters.values()
    except (TypeError, ValueError):
        return ()
    return tuple(each.name for each in found if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD))


def padding_mask(named: list[tuple[str, torch.Tensor]]) -> torch.Tensor | None:
    """Return which positions of a batch are no padding, bool of shape (rows, length); None if nothing is padded.

    Args:
        named: The tensors of a call with their paths, such as ``1.attention_mask`` or ``1.lengths``.

    A mask that hides anything but one end of a row is none of padding.
    """
    for path, given in named:
        name = path.rpartition(".")[2]
        if name in _MASKS | _INVERTED_MASKS and given.dim() == 2 and given.numel() and is_plain(given):
            mask = (given.detach() != 0) ^ (name in _INVERTED_MASKS)
            before, after = mask[:, :-1], mask[:, 1:]
            one_end = bool(((after <= before).all(1) | (after >= before).all(1)).all())
            return mask if one_end and not bool(mask.all()) else None
        if name in _LENGTHS and given.dim() == 1 and given.dtype in _INTEGERS and is_plain(given):
            return _length_mask(given.detach(), [tensor for _, tensor in named])
    return None


def _length_mask(lengths: torch.Tensor, tensors: list[torch.Tensor]) -> torch.Tensor | None:
    """Return the mask that lengths make of the first tensor of (rows, length, ...) that is as wide as the longest."""
    wide = (each for each in tensors if each.dim() >= 2 and len(each) == len(lengths))
    text = next((each for each in wide if each.numel() and each.shape[1] >= int(lengths.max())), None)
    if text is None or bool((lengths < 0).any()):
        return None
    lengths = lengths.to(text.device)
    mask = torch.arange(text.shape[1], device=text.device)[None] < lengths[:, None]
    return None if bool(mask.all()) else mask


def fill_mask(text: torch.Tensor, fills: frozenset[int]) -> torch.Tensor | None:
    """Return which tokens of (rows, length) are no padding: both ends of a row may be filled up, its middle not."""
    pad = torch.zeros_like(text, dtype=torch.bool)
    for fill in fills:
        pad |= text == fill
    ends = pad.cummin(1).values | pad.flip(1).cummin(1).values.flip(1)
    return ~ends if bool(ends.any()) else None


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
