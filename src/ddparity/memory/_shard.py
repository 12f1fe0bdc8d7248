"""Sharding a model over ranks that are not there: FSDP2 on a process group that only pretends.

The fake backend answers every collective at once and moves nothing. What a rank holds (its shards, the layers gathered
for forward and backward, the buffers of a reduction) is allocated as with real ranks.
"""

import contextlib
import gc
from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn


class Sharding:
    """FSDP2 over so many ranks; make it outside of fake tensors, since a mesh looks at values."""

    def __init__(self, num_ranks: int) -> None:
        from torch.distributed.device_mesh import init_device_mesh

        self.num_ranks = num_ranks
        self._mesh = init_device_mesh("cpu", (num_ranks,))

    def apply(self, model: nn.Module) -> dict[nn.Parameter, nn.Parameter]:
        """Shard a model as guides advise: each block of a list of blocks, then what is left.

        Returns:
            The parameter that stands in the place of each former one.
        """
        from torch.distributed.fsdp import fully_shard

        before = dict(model.named_parameters(remove_duplicate=False))
        for block in _blocks(model):
            fully_shard(block, mesh=self._mesh)
        fully_shard(model, mesh=self._mesh)
        after = dict(model.named_parameters(remove_duplicate=False))
        return {parameter: after[name] for name, parameter in before.items() if name in after}


def _blocks(model: nn.Module) -> list[nn.Module]:
    """Return the modules that stand in lists of modules, the outermost ones; they are what is called one by one."""
    found: list[nn.Module] = []
    for child in model.children():
        if isinstance(child, nn.ModuleList):
            found += [each for each in child if any(True for _ in each.parameters())]
        else:
            found += _blocks(child)
    return found


@contextlib.contextmanager
def pretended(num_ranks: int) -> Iterator[None]:
    """Let this process be rank 0 of so many that do not exist, unless it has a process group already."""
    if dist.is_initialized():
        yield
        return
    pretend(num_ranks)
    try:
        yield
    finally:
        dist.destroy_process_group()


def pretend(num_ranks: int, *, init: Any = None) -> None:
    """Make the default process group of ranks that do not exist."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    (init or dist.init_process_group)("fake", rank=0, world_size=num_ranks, store=FakeStore())


def largest_unit() -> int:
    """Return the bytes of the largest group of parameters that is gathered at once, 0 where nothing is sharded."""
    groups: list[Any] = [each for each in gc.get_objects() if type(each).__name__ == "FSDPParamGroup"]
    return max((sum(map(_whole_bytes, group.fsdp_params)) for group in groups), default=0)


def _whole_bytes(parameter: Any) -> int:
    return parameter._orig_size.numel() * parameter.sharded_param.element_size()


def bytes_of(parameters: Iterable[torch.Tensor]) -> int:
    """Return the bytes of parameters, each once; of shards what this rank holds."""
    held: dict[int, Any] = {id(each): getattr(each, "_local_tensor", each) for each in parameters}
    return sum(each.numel() * each.element_size() for each in held.values())
