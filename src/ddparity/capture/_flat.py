"""Flat shards of ``FullyShardedDataParallel`` (FSDP1): which range of which parameter a rank holds.

FSDP1 flattens the parameters of a module, concatenates them and cuts the result into one piece a rank. What a rank
holds of a parameter is a range of its flattened elements, from the middle of one parameter to the middle of another;
the flat parameter itself tells which. With ``use_orig_params`` the optimizer is given views of those ranges under the
parameters' own names, otherwise the flat parameters, which are taken apart here.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from ._placement import Located

if TYPE_CHECKING:
    from ._names import Registry

PLACEMENT = "flat"


class FlatRange(NamedTuple):
    """A rank's range of a parameter.

    Attributes:
        shape: The parameter's shape.
        start: Index of the first element of the range in the flattened parameter.
        length: Number of elements; 0 where the rank holds nothing of it.
        offset: Where the range begins in the rank's flat shard.
    """

    shape: tuple[int, ...]
    start: int
    length: int
    offset: int

    def located(self, tensor: torch.Tensor) -> Located:
        """Describe the range's elements."""
        return Located(tensor, (self.start,), self.shape, PLACEMENT)


class FlatShards:
    """The ranges of the parameters of every FSDP1 module, by name, and of the flat parameters that consist of them."""

    def __init__(self) -> None:
        self._ranges: dict[str, FlatRange] = {}
        self._members: dict[str, tuple[int, list[str]]] = {}

    def learn(self, root: nn.Module, registry: "Registry") -> set[str]:
        """Find the flat parameters below a wrapped model.

        Returns:
            Names of parameters that are flat and whose place nobody knows.
        """
        unknown: set[str] = set()
        for module in root.modules():
            flat = getattr(getattr(module, "_handle", None), "flat_param", None)
            if type(module).__name__ != "FullyShardedDataParallel" or flat is None:
                continue
            own = registry.name(flat) or ""
            if not getattr(module._handle, "uses_sharded_strategy", True):
                unknown |= {own} if own else set()
                continue
            names = [_qualified(info, registry) for info in flat._param_infos]
            for name, shape, info in zip(names, flat._shapes, flat._shard_param_infos, strict=True):
                self._ranges[name] = _range(tuple(shape), info)
            if own:
                self._members[own] = flat.numel(), names
        return unknown

    def missing(self, name: str) -> FlatRange | None:
        """Return the range of a parameter of which this rank holds nothing, or None."""
        found = self._ranges.get(name)
        return found if found is not None and found.length == 0 else None

    def parts(self, tensor: torch.Tensor, name: str) -> Iterator[tuple[str, Located]] | None:
        """Take a tensor apart that lies as a flat shard does; None if it does not.

        Args:
            tensor: Of shape (elements of the shard,), or (elements of the range,) for a single parameter.
            name: Of the flat parameter, or of a parameter.
        """
        if tensor.dim() != 1:
            return None
        if name in self._members:
            size, names = self._members[name]
            if tensor.numel() != size:  # the gradient of the whole, before it is reduced and scattered
                return None
            ranges = {each: self._ranges[each] for each in names}
            return ((each, r.located(tensor[r.offset : r.offset + r.length])) for each, r in ranges.items())
        found = self._ranges.get(name)
        if found is None or tensor.numel() != found.length:
            return None
        return iter([(name, found.located(tensor))])


def _range(shape: tuple[int, ...], info: Any) -> FlatRange:
    if not info.in_shard:
        return FlatRange(shape, torch.Size(shape).numel(), 0, 0)
    return FlatRange(shape, info.intra_param_start_idx, info.numel_in_shard, info.offset_in_shard)


def _qualified(info: Any, registry: "Registry") -> str:
    owner = registry.name(info.module) or ""
    is_top = registry.top_of(info.module) is info.module
    return info.param_name if not owner or (is_top and "." not in owner) else f"{owner}.{info.param_name}"
