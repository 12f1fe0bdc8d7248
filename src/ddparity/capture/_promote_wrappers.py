"""Where a model's dtype is looked at for the first time: wrappers, sharding, optimizers. It is promoted before."""

import functools
import importlib
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

PromoteModule = Callable[[nn.Module], None]
PromoteTensors = Callable[[Iterable[Any]], None]
_SHARDING = (
    ("torch.distributed.fsdp", "fully_shard"),
    ("torch.distributed.tensor.parallel", "parallelize_module"),
    ("torch.distributed.tensor", "distribute_module"),
)


def install_wrappers(module: PromoteModule, tensors: PromoteTensors) -> None:
    """Promote models before DDP, FSDP, ``fully_shard``, tensor parallelism or an optimizer takes them.

    A mixed precision that a wrapper is asked for is left out: it would take the computation out of float64.
    """
    _around_optimizer(tensors)
    if not torch.distributed.is_available():
        return
    from torch.distributed.fsdp import FullyShardedDataParallel

    for wrapper in (nn.parallel.DistributedDataParallel, FullyShardedDataParallel):
        _around_wrapper(wrapper, module)
    for place, name in _SHARDING:
        _around_function(place, name, module)
    _around_tensor(tensors)


def _around_optimizer(promote: PromoteTensors) -> None:
    owner: Any = torch.optim.Optimizer
    plain = owner.__init__

    @functools.wraps(plain)
    def init(self: Any, params: Any, *args: Any, **kwargs: Any) -> None:
        if not isinstance(params, (torch.Tensor, list)):
            params = list(params)
        promote(_held(params))
        plain(self, params, *args, **kwargs)

    owner.__init__ = init


def _held(params: Any) -> Iterable[Any]:
    """Yield the tensors of parameter lists, named or not, and of groups; a group's generator becomes a list."""
    if isinstance(params, torch.Tensor):
        yield params
        return
    for each in params:
        if isinstance(each, dict):
            if not isinstance(each["params"], torch.Tensor):
                each["params"] = list(each["params"])
            yield from _held(each["params"])
        else:
            yield each[1] if isinstance(each, tuple) else each


def _around_wrapper(owner: Any, promote: PromoteModule) -> None:
    plain = owner.__init__

    @functools.wraps(plain)
    def init(self: Any, module: nn.Module, *args: Any, **kwargs: Any) -> None:
        promote(module)
        if kwargs.get("mixed_precision") is not None:
            kwargs["mixed_precision"] = None
        plain(self, module, *args, **kwargs)

    owner.__init__ = init


def _around_function(place: str, name: str, promote: PromoteModule) -> None:
    try:
        package = importlib.import_module(place)
    except ImportError:  # another version of torch
        return
    plain = getattr(package, name, None)
    if plain is None:
        return

    @functools.wraps(plain)
    def call(module: Any, *args: Any, **kwargs: Any) -> Any:
        for each in module if isinstance(module, (list, tuple)) else [module]:
            promote(each)
        if kwargs.get("mp_policy") is not None:
            kwargs["mp_policy"] = type(kwargs["mp_policy"])()
        return plain(module, *args, **kwargs)

    for attribute in ("state", "get_state"):  # fully_shard.state, used by torch itself
        if hasattr(plain, attribute):
            setattr(call, attribute, getattr(plain, attribute))
    setattr(package, name, call)


def _around_tensor(promote: PromoteTensors) -> None:
    package: Any = importlib.import_module("torch.distributed.tensor")
    plain = package.distribute_tensor

    @functools.wraps(plain)
    def call(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(tensor, nn.Parameter):
            promote([tensor])
        return plain(tensor, *args, **kwargs)

    package.distribute_tensor = call
