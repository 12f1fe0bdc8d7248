"""Finding a script's batch where its model is called, and giving it another size.

What belongs to a batch is told by its shape alone: among the tensors that the running functions can see, those that
have as many rows as the model's first input. They are changed in place, wherever they stand (variables, dictionaries,
objects), so that the loss, which the script computes outside of the model, sees the new size as well.
"""

import inspect
import sys
from collections import UserDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ._swap import become

_MAX_NODES, _MAX_DEPTH, _MAX_ITEMS = 20_000, 5, 256
_NOT_INSIDE = (nn.Module, torch.optim.Optimizer, torch.utils.data.Dataset, torch.utils.data.DataLoader)
_ATOMS = (str, bytes, int, float, complex, type(None), type, ModuleType, FunctionType, MethodType, FrameType)
_CALLS = frozenset({"_call_impl", "inner", "_wrapped_call_impl"})


@dataclass(frozen=True)
class Shape:
    """The sizes of a script's own batch: which dimension counts samples, how many, and how long a sequence is."""

    dim: int
    batch: int
    seq: int | None

    def resized(self, size: torch.Size, batch: int, seq: int | None) -> list[int] | None:
        """Return the size that a tensor of this size gets, or None if it is no part of the batch."""
        sizes = list(size)
        of_batch = len(sizes) > self.dim and sizes[self.dim] == self.batch
        if seq is not None and self.seq is not None:
            # A mask or positions may have no samples, and nothing but lengths.
            alone = bool(sizes) and all(each == self.seq for each in sizes)
            if of_batch or alone:
                kept = self.dim if of_batch else -1
                sizes = [seq if n != kept and each == self.seq else each for n, each in enumerate(sizes)]
        if of_batch:
            sizes[self.dim] = batch
        return sizes if of_batch or sizes != list(size) else None


def shape_of_call(frame: FrameType | None, args: Any, dim: int) -> Shape | None:
    """Return the sizes of what a model is called with; ``frame`` is where to look for its keyword arguments."""
    given: list[Any] = [args]
    for _ in range(6):
        if frame is None or len(given) > 1:
            break
        if frame.f_code.co_name in _CALLS:
            given += [value for name, value in _variables(frame) if name == "kwargs"]
        frame = frame.f_back
    tensors = [each for each in tree_leaves(given) if isinstance(each, torch.Tensor) and each.ndim > dim]
    if not tensors:
        return None
    first = tensors[0]
    longer = next((each for each in tensors if each.ndim > dim + 1), None)
    return Shape(dim, int(first.shape[dim]), None if longer is None else int(longer.shape[dim + 1]))


def visible_tensors(frame: FrameType | None) -> list[torch.Tensor]:
    """Return the plain tensors that the functions on the stack can see, but no parameters and nothing computed."""
    walk = _Walk()
    while frame is not None:
        walk.take(value for _, value in _variables(frame))
        frame = frame.f_back
    return walk.tensors


def _variables(frame: FrameType) -> Iterator[tuple[str, Any]]:
    held: Any = frame.f_locals
    variables = list(held.items())
    if frame.f_code.co_flags & inspect.CO_OPTIMIZED and isinstance(held, dict):
        held.clear()  # a copy (before Python 3.13), which would keep alive what it holds
    yield from variables


class LateBatch(TorchDispatchMode):
    """Resizes what is cut out of real data after the model was called: targets, further micro-batches.

    Args:
        resized: Returns the tensor of the wanted size for one of the script's own size, or None.
    """

    def __init__(self, resized: Callable[[torch.Tensor], torch.Tensor | None]) -> None:
        super().__init__()
        self._resized = resized

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation; give its result the wanted size if it is a batch made of real data."""
        result = func(*args, **(kwargs or {}))
        other = self._resized(result) if type(result) is torch.Tensor and not result.requires_grad else None
        return result if other is None else other


class _Walk:
    def __init__(self) -> None:
        self.tensors: list[torch.Tensor] = []
        self._seen: set[int] = set()
        self._queue: deque[tuple[Any, int]] = deque()

    def take(self, values: Iterator[Any]) -> None:
        self._queue.extend((value, 0) for value in values)
        while self._queue and len(self._seen) < _MAX_NODES:
            value, depth = self._queue.popleft()
            if isinstance(value, _ATOMS) or id(value) in self._seen:
                continue
            self._seen.add(id(value))
            if isinstance(value, torch.Tensor):
                if value.grad_fn is None and not isinstance(value, nn.Parameter) and value.layout == torch.strided:
                    self.tensors.append(value)
            elif depth < _MAX_DEPTH and not isinstance(value, _NOT_INSIDE):
                self._queue.extend((inner, depth + 1) for inner in _inner(value))
        self._queue.clear()


def _inner(value: Any) -> list[Any]:
    if isinstance(value, (dict, UserDict)):
        return list(value.values()) if len(value) <= _MAX_ITEMS else []
    if isinstance(value, (list, tuple, set, frozenset, deque)):
        return list(value) if len(value) <= _MAX_ITEMS else []
    module = type(value).__module__ or ""
    held = getattr(value, "__dict__", None)
    if isinstance(held, dict) and not module.startswith(("torch", "ddparity")) and len(held) <= _MAX_ITEMS:
        return list(held.values())
    return []


def resize_visible(
    shape: Shape, batch: int, seq: int | None, make: Callable[[torch.Tensor, list[int]], torch.Tensor], skip: set[int]
) -> list[torch.Tensor]:
    """Give every tensor of the batch that can be seen from here another size; return them.

    Args:
        shape: The script's own sizes.
        batch: Samples that are wanted.
        seq: Length that is wanted, or None.
        make: Makes the tensor of a new size that takes a tensor's place.
        skip: Identities of what is no part of a batch whatever its size: buffers.
    """
    found = []
    for tensor in visible_tensors(sys._getframe(1)):
        sizes = None if id(tensor) in skip else shape.resized(tensor.shape, batch, seq)
        if sizes is not None and become(tensor, make(tensor, sizes)):
            found.append(tensor)
    return found
