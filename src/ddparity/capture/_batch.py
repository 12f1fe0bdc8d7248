"""Which samples a call works on: identities from content, taken before anything is promoted or changed."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from ddparity.digest import RowKeys, row_hashes

_MAX_DEPTH = 4


def named_tensors(value: Any, path: str = "", depth: int = 0) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield every tensor in nested tuples, lists, mappings and dataclasses with its path, such as ``0`` or ``logits``."""
    if isinstance(value, torch.Tensor):
        yield path, value
        return
    if depth >= _MAX_DEPTH:
        return
    for key, item in _items(value):
        yield from named_tensors(item, f"{path}.{key}" if path else str(key), depth + 1)


def _items(value: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, Mapping):
        yield from value.items()
    elif isinstance(value, (tuple, list)):
        yield from enumerate(value)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield field.name, getattr(value, field.name, None)


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor can be digested: dense, with memory of its own, outside functorch and fake modes."""
    return (
        tensor.layout == torch.strided
        and tensor.device.type != "meta"
        and type(tensor).__name__ not in ("FakeTensor", "FunctionalTensor", "BatchedTensor")
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
        and not tensor.is_quantized
    )


class Batch:
    """The samples a root call works on.

    Attributes:
        number: Which batch of the training step, from 0.
        keys: Identities of its samples.
        inner: Products of the input's dimensions after the batch: the rows a sample may be spread over.
    """

    def __init__(self, number: int, keys: RowKeys, shapes: list[tuple[int, ...]]) -> None:
        self.number = number
        self.keys = keys
        self.size = len(keys.ids)
        self.inner = _partial_products(shapes)

    def rows_a_sample(self, shape: tuple[int, ...]) -> int:
        """Return how many rows of dimension 0 each sample has: 0 if unknown, negative if dimension 1 is the batch."""
        if not shape or self.size == 0:
            return 0
        if shape[0] == self.size:
            return 1
        if shape[0] % self.size == 0 and shape[0] // self.size in self.inner:
            return shape[0] // self.size
        if len(shape) > 2 and shape[1] == self.size and shape[0] in self.inner:
            return -shape[0]
        return 0


def _partial_products(shapes: list[tuple[int, ...]]) -> frozenset[int]:
    products: set[int] = set()
    for shape in shapes:
        for first in range(1, len(shape)):
            product = 1
            for size in shape[first:]:
                product *= size
                products.add(product)
    return frozenset(products - {0, 1})


class Batches:
    """The batches of the current training step, and which tensors came out of which batch."""

    def __init__(self, batch_dim: int) -> None:
        self._batch_dim = batch_dim
        self.current: Batch | None = None
        self._by_ids: dict[int, Batch] = {}
        self._made: dict[int, tuple[StorageWeakRef, Batch]] = {}

    def new_step(self) -> None:
        """Forget the batches of the step before."""
        self.current = None
        self._by_ids.clear()
        self._made.clear()

    def came_from(self, tensor: torch.Tensor, batch: Batch) -> None:
        """Remember that a module made ``tensor`` from ``batch``."""
        storage = tensor.untyped_storage()
        self._made[storage.data_ptr()] = (StorageWeakRef(storage), batch)

    def enter(self, args: Any, kwargs: Any) -> tuple[Batch | None, bool]:
        """Find the batch that enters a root module; also say whether it is new in this step."""
        tensors = [t for _, t in named_tensors((args, kwargs)) if t.dim() > self._batch_dim and is_plain(t)]
        made = [batch for t in tensors if (batch := self._maker(t)) is not None]
        if made:
            self.current = made[0]
            return self.current, False
        if tensors and any(t.grad_fn is not None for t in tensors):
            return self.current, False
        if not tensors:
            return self.current, False
        return self._identify(tensors)

    def _maker(self, tensor: torch.Tensor) -> Batch | None:
        entry = self._made.get(tensor.untyped_storage().data_ptr())
        return entry[1] if entry is not None and not entry[0].expired() else None

    def _identify(self, tensors: list[torch.Tensor]) -> tuple[Batch, bool]:
        if self._batch_dim:
            tensors = [t.movedim(self._batch_dim, 0) for t in tensors]
        size = tensors[0].shape[0]
        mine = [t for t in tensors if t.shape[0] == size]
        ids = np.zeros(size, dtype=np.uint64)
        for tensor in mine:
            with np.errstate(over="ignore"):
                ids = ids * np.uint64(0x9E3779B97F4A7C15) + row_hashes(tensor)
        keys = RowKeys.of(ids)
        batch = self._by_ids.get(keys.token)
        if batch is not None:
            self.current = batch
            return batch, False
        batch = Batch(len(self._by_ids), keys, [tuple(t.shape) for t in mine])
        self._by_ids[keys.token] = self.current = batch
        return batch, True
