"""``record --dtype float64``: an unmodified training, computed in float64.

Parameters and buffers keep the values they were initialised with, and samples those they were loaded with: both are
converted exactly, when they first take part. What random generators draw is drawn as before. A model is promoted
before a wrapper looks at its dtype (DDP, ``fully_shard``, an optimizer) or else when it is called; floating inputs when
they enter it. From there on a torch function mode keeps the computation in float64: casts to a lower precision are not
made, constants and targets that meet a float64 tensor are converted to it.

Unlike recording this changes the training, as it is asked to; the trial keeps it as a fact (``dtype``). What happens
inside the optimizers, in the loaders and to tensors that need no gradient stays as the script wrote it.
"""

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

LOW = {torch.float32, torch.float16, torch.bfloat16}
_WIDE = {torch.float32: torch.float64, torch.float16: torch.float64, torch.bfloat16: torch.float64}
_WIDE |= {torch.complex64: torch.complex128, torch.complex32: torch.complex128}
_CASTS = {torch.Tensor.float, torch.Tensor.half, torch.Tensor.bfloat16, torch.Tensor.type_as}
_WRITES = {"__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__"}
_ATTRIBUTES = {"__get__", "__set__", "__delete__"}
_DTYPE_WORDS = ("dtype", "same type", "scalar type", "Input type", "expected m1 and m2", "must match")
_ORIGINAL = "_ddparity_original"


def original(tensor: torch.Tensor) -> torch.Tensor:
    """Return an input as the script made it, before it was promoted or moved: samples are identified by that."""
    noted = getattr(tensor, _ORIGINAL, None)
    if noted is None or noted[1] != _version(tensor):
        return tensor
    return noted[0]


def replaced(tensor: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    """Return ``new`` with a note of what it stands for."""
    setattr(new, _ORIGINAL, (original(tensor), _version(new)))
    return new


def _version(tensor: torch.Tensor) -> int:
    return -1 if tensor.is_inference() else tensor._version


def widen(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor in float64 (complex128), itself if it is neither floating nor narrower."""
    wide = _WIDE.get(tensor.dtype)
    return tensor if wide is None or tensor.device.type == "meta" else tensor.to(wide)


def widen_in_place(tensor: torch.Tensor) -> None:
    """Give a tensor object float64 values; whoever holds the object holds them."""
    if tensor.dtype in _WIDE and not tensor.is_inference() and tensor.device.type != "meta":
        if tensor.grad is not None:
            grad, tensor.grad = tensor.grad, None
            tensor.data = widen(tensor.data)
            tensor.grad = widen(grad)
        else:
            tensor.data = widen(tensor.data)


class Promotion:
    """Installs the mode and the points at which models are promoted."""

    def __init__(self) -> None:
        self.depth = 0
        self._mode = PromotingMode(self)

    def install(self) -> None:
        """Enter the mode in this thread and wrap what looks at a model's dtype."""
        from ._promote_collectives import install_collectives
        from ._promote_wrappers import install_wrappers

        install_wrappers(self.module, self.tensors)
        install_collectives()
        self._mode.__enter__()

    def module(self, module: nn.Module) -> None:
        """Promote a model's parameters and buffers, keeping the objects."""
        for tensor in [*module.parameters(), *module.buffers()]:
            self._tensor(tensor)

    def tensors(self, tensors: Iterable[Any]) -> None:
        """Promote what an optimizer is given."""
        for each in tensors:
            if isinstance(each, torch.Tensor):
                self._tensor(each)

    def enter(self, module: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Promote a model that the script calls, and what it is called with."""
        self.module(module)
        return map_tensors(_input, args), map_tensors(_input, kwargs)

    @staticmethod
    def _tensor(tensor: torch.Tensor) -> None:
        if tensor.dtype in _WIDE and not nn.parameter.is_lazy(tensor):
            widen_in_place(tensor)


def _input(tensor: torch.Tensor) -> torch.Tensor:
    if (
        tensor.requires_grad and tensor.is_leaf and tensor.dtype in LOW
    ):  # its gradient is asked for, of this very object
        before = tensor.detach().clone()
        widen_in_place(tensor)
        return replaced(before, tensor)
    wide = widen(tensor)
    return tensor if wide is tensor else replaced(tensor, wide)


class PromotingMode(TorchFunctionMode):
    """Keeps what a promoted model computes in float64."""

    def __init__(self, promotion: Promotion) -> None:
        super().__init__()
        self._promotion = promotion

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a function of torch in float64 where float64 takes part in it."""
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in _ATTRIBUTES or getattr(func, "__module__", "") == torch.autograd.__name__:
            return func(*args, **kwargs)
        if self._computes and any(self._is_ours(tensor) for tensor in tensors_in((args, kwargs))):
            return _run_wide(func, name, args, kwargs)
        try:
            return func(*args, **kwargs)
        except RuntimeError as error:
            if not _mixes(error, args, kwargs):
                raise
        return _run_wide(func, name, args, kwargs)

    @property
    def _computes(self) -> bool:
        """Whether this may be a model's computation: inside its call, or where gradients are recorded."""
        return self._promotion.depth > 0 or torch.is_grad_enabled()

    def _is_ours(self, tensor: torch.Tensor) -> bool:
        wide = tensor.dtype in (torch.float64, torch.complex128)
        return wide and (tensor.requires_grad or self._promotion.depth > 0)


def _run_wide(func: Any, name: str, args: Any, kwargs: Any) -> Any:
    """Run a function in float64: no cast to a lower precision, no argument left in one."""
    if func in _CASTS:
        return widen(args[0])
    if name == "to" and len(args) > 1 and isinstance(args[1], torch.Tensor):
        args = (args[0], args[1].device, *args[2:])
    args, kwargs = map_dtypes(args), map_dtypes(kwargs)
    if (name in _WRITES or (name.endswith("_") and not name.endswith("__"))) and args:
        target = args[0]
        if isinstance(target, torch.Tensor) and not target.requires_grad and not target._is_view():
            widen_in_place(target)
        return func(target, *map_tensors(widen, args[1:]), **map_tensors(widen, kwargs))
    if isinstance(kwargs.get("out"), torch.Tensor):
        widen_in_place(kwargs["out"])
    return func(*map_tensors(widen, args), **map_tensors(widen, kwargs))


def _mixes(error: RuntimeError, args: Any, kwargs: Any) -> bool:
    """Whether a function failed because float64 met a lower precision."""
    dtypes = {tensor.dtype for tensor in tensors_in((args, kwargs))}
    return torch.float64 in dtypes and bool(dtypes & LOW) and any(word in str(error) for word in _DTYPE_WORDS)


def tensors_in(value: Any, depth: int = 0) -> Iterable[torch.Tensor]:
    """Yield the tensors in nested tuples, lists and dictionaries."""
    if isinstance(value, torch.Tensor):
        yield value
    elif depth < 4 and isinstance(value, (tuple, list)):
        for item in value:
            yield from tensors_in(item, depth + 1)
    elif depth < 4 and isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item, depth + 1)


def map_tensors(change: Callable[[torch.Tensor], torch.Tensor], value: Any, depth: int = 0) -> Any:
    """Return nested tuples, lists and dictionaries with every tensor changed; the same object where none is."""
    if isinstance(value, torch.Tensor):
        return change(value)
    return _rebuilt(value, depth, functools.partial(map_tensors, change))


def map_dtypes(value: Any, depth: int = 0) -> Any:
    """Return nested tuples, lists and dictionaries with float64 for every narrower dtype."""
    if isinstance(value, torch.dtype):
        return _WIDE.get(value, value)
    return _rebuilt(value, depth, map_dtypes)


def _rebuilt(value: Any, depth: int, change: Callable[[Any, int], Any]) -> Any:
    if depth > 4 or not isinstance(value, (tuple, list, dict)):
        return value
    if isinstance(value, dict):
        new = {key: change(item, depth + 1) for key, item in value.items()}
        if all(new[key] is item for key, item in value.items()):
            return value
        if type(value) is dict:
            return new
        copy = value.copy()  # a subclass with attributes of its own, as tokenizers return
        copy.update(new)
        return copy
    items = [change(item, depth + 1) for item in value]
    if all(new is old for new, old in zip(items, value, strict=True)):
        return value
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*items)
    return type(value)(items)
