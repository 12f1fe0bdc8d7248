"""Letting a tensor be another one, for everybody who holds it: a real one a fake, a fake one of another dtype."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch


def become(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """Let ``tensor`` be what ``other`` is, and the other way round; return whether that was possible.

    ``torch.utils.swap_tensors`` refuses tensors that are referred to weakly, as fake tensors are by their mode's memory
    of conversions and the weights of recurrent layers by their module. Both go on to refer to the same Python object,
    which is what is wanted here.
    """
    one: Any = tensor
    two: Any = other
    try:
        torch._C._swap_tensor_impl(one, two)
    except RuntimeError:
        return False
    one.__class__, two.__class__ = two.__class__, one.__class__
    one.__dict__, two.__dict__ = two.__dict__, one.__dict__
    return True


@contextlib.contextmanager
def converting() -> Iterator[None]:
    """Let modules of fake tensors be converted: ``.to(torch.bfloat16)``, ``.to(memory_format=...)``."""
    module: Any = torch.utils
    original = module.swap_tensors

    def swap_tensors(one: torch.Tensor, two: torch.Tensor) -> None:
        if not become(one, two):
            raise RuntimeError("a parameter is referred to by others and cannot be converted")

    module.swap_tensors = swap_tensors
    try:
        yield
    finally:
        module.swap_tensors = original
