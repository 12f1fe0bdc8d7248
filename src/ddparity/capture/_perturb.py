"""``record --floor``: the same training with its inputs moved by one unit in the last place.

What that makes of every tensor is what rounding may make of it. Signs alternate by a fixed pattern: no generator is
asked. A model that takes integers (token ids) has the outputs of its first modules moved instead, its embeddings.
"""

from typing import Any

import torch
from torch import nn

from ._promote import map_tensors, replaced, tensors_in


class Perturbation:
    """Moves what enters a model that the script calls."""

    def __init__(self) -> None:
        self._pending = False

    def enter(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Return the inputs, moved; where none is floating, wait for the first modules that return floats."""
        self._pending = not any(t.is_floating_point() for t in tensors_in((args, kwargs)))
        return map_tensors(_moved_input, args), map_tensors(_moved_input, kwargs)

    def leave(self, module: nn.Module, args: Any, output: Any) -> Any:
        """Return what an inner module returned, moved where it made floats of integers."""
        if not self._pending or not isinstance(output, torch.Tensor) or not output.is_floating_point():
            return output
        if any(t.is_floating_point() for t in tensors_in(args)) or next(module.parameters(False), None) is None:
            return output
        return moved(output)


def moved(tensor: torch.Tensor) -> torch.Tensor:
    """Return a floating tensor with every other element one unit in the last place larger, the rest smaller."""
    eps = torch.finfo(tensor.dtype).eps
    index = torch.arange(tensor.numel(), device=tensor.device)
    signs = 1.0 - 2.0 * ((index ^ (index >> 3) ^ (index >> 7)) & 1)
    return tensor * (1.0 + eps * signs.to(tensor.dtype).reshape(tensor.shape))


def _moved_input(tensor: torch.Tensor) -> torch.Tensor:
    if not tensor.is_floating_point() or tensor.grad_fn is not None:  # another model made it
        return tensor
    return replaced(tensor, moved(tensor))
