"""Collectives of a promoted training: every floating payload travels in float64, on every rank alike.

A buffer that the script allocated in float32 would not match what its partner sends. Both ends convert whatever is
floating, so that they agree without asking each other. The result goes back into the script's own memory; where that
is too narrow for it, the script's tensor object is given the float64 values. So samples that are sent around stay what
they are, and what a promoted model sends arrives whole.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch

from ._promote import LOW, map_tensors, tensors_in, widen

_FUNCTIONS = (
    "all_reduce", "reduce", "broadcast", "all_gather", "all_gather_into_tensor", "gather", "scatter", "reduce_scatter",
    "reduce_scatter_tensor", "all_to_all", "all_to_all_single", "send", "recv", "isend", "irecv",
)  # fmt: skip


def install_collectives() -> None:
    """Wrap the functions of ``torch.distributed`` that move tensors."""
    if not torch.distributed.is_available():
        return
    home = torch.distributed.distributed_c10d
    for name in _FUNCTIONS:
        plain = getattr(home, name, None)
        if plain is None:
            continue
        wrapped = _promoted(plain)
        for place in (home, torch.distributed):
            if getattr(place, name, None) is plain:
                setattr(place, name, wrapped)


def _promoted(plain: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(plain)
    def call(*args: Any, **kwargs: Any) -> Any:
        low = [tensor for tensor in tensors_in((args, kwargs)) if tensor.dtype in LOW]
        if not low:
            return plain(*args, **kwargs)
        wide = {id(tensor): widen(tensor.detach()).contiguous() for tensor in low}

        def change(tensor: torch.Tensor) -> torch.Tensor:
            return wide.get(id(tensor), tensor)

        work = plain(*map_tensors(change, args), **map_tensors(change, kwargs))
        if hasattr(work, "wait"):
            work.wait()
        with torch.no_grad():
            for tensor in low:
                _give_back(tensor, wide[id(tensor)])
        return work

    return call


def _give_back(tensor: torch.Tensor, wide: torch.Tensor) -> None:
    tensor.detach().copy_(wide)
    fits = torch.equal(tensor.detach().to(wide.dtype), wide)
    if not fits and not tensor.requires_grad and not tensor._is_view():
        tensor.data = wide
