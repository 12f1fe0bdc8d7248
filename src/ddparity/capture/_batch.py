"""Which samples a call works on: identities from content, taken before anything is promoted or changed."""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from ddparity.digest import RowKeys, row_hashes

from ._guard import is_plain
from ._offspring import Offspring
from ._padding import Padding
from ._placement import own_rows
from ._promote import original

if TYPE_CHECKING:
    from ._pieces import Pieces

_MAX_DEPTH = 4
_MAX_ITEMS = 4096


def named_tensors(value: Any, path: str = "", depth: int = 0) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield every tensor in nested tuples, lists, mappings and dataclasses with its path: ``0``, ``logits``."""
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
        yield from enumerate(value[:_MAX_ITEMS])
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield field.name, getattr(value, field.name, None)


class Batch:
    """The samples a root call works on.

    Attributes:
        number: Which batch of the training step, from 0.
        keys: Identities of its samples.
        training: Whether it entered a training call.
        piece: Where its samples are slices of the control's along the sequence: start, stop, total.
        shape: Shape of the first tensor that entered.
        inner: Products of the input's dimensions after the batch: the rows a sample may be spread over.
    """

    def __init__(self, number: int, keys: RowKeys, tensors: list[torch.Tensor], *, training: bool) -> None:
        self.number = number
        self.keys = keys
        self.training = training
        self.piece: tuple[int, int, int] | None = None
        self.size = len(keys.ids)
        self.shape = list(tensors[0].shape) if tensors else [len(keys.ids)]
        self.inner = _partial_products([tuple(t.shape) for t in tensors])
        self._storages = {t.untyped_storage().data_ptr() for t in tensors}

    def place(self, shape: tuple[int, ...]) -> tuple[int, int, tuple[int, ...]]:
        """Return rows a sample, elements of each sample before the tensor's part of it, and the shape of all parts.

        Where samples are cut along the sequence, so is what has their length right after the sample, one row a
        position or one a sample; of anything else nobody knows how it was cut, and it is left keyed by position.
        """
        rows = self.rows_a_sample(shape)
        if self.piece is None or not rows:
            return rows, 0, shape
        start, stop, total = self.piece
        length = stop - start
        if rows == 1 and len(shape) > 1 and shape[1] == length:
            return 1, start * math.prod(shape[2:]), (shape[0], total, *shape[2:])
        if rows == length:
            return total, start * math.prod(shape[1:]), (shape[0] // length * total, *shape[1:])
        if rows == -length:
            return -total, start * math.prod(shape[2:]), (total, *shape[1:])
        return 0, 0, shape

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is one of the batch's own, or a view of one."""
        return tensor.untyped_storage().data_ptr() in self._storages

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
        if len(shape) == 4 and shape[1] not in shape[2:]:
            products.discard(shape[1])  # three times as many rows as RGB images are three views, one after the other
    return frozenset(products - {0, 1})


class Batches:
    """The batches of the current training step, and which tensors came out of which batch."""

    def __init__(self, batch_dim: int, pieces: "Pieces") -> None:
        self._batch_dim = batch_dim
        self._pieces = pieces
        self._offspring = Offspring()
        self._padding = Padding()
        self.current: Batch | None = None
        self._by_ids: dict[tuple[int, bool], Batch] = {}
        self._numbers = {True: 0, False: 0}
        self._fed: list[Batch] = []
        self._made: dict[int, tuple[StorageWeakRef, Batch]] = {}
        self._made_before: dict[int, tuple[StorageWeakRef, Batch]] = {}

    def new_step(self) -> None:
        """Forget the batches of the step before."""
        self.current = None
        self._by_ids.clear()
        self._numbers = {True: 0, False: 0}
        self._fed.clear()
        self._offspring.new_step()
        self._made_before = self._made
        self._made = dict[int, tuple[StorageWeakRef, Batch]]()

    def fed(self, batch: Any) -> None:
        """Take a batch that the script says it has got; which step trains on it, and whether one does, is not known."""
        tensors = self._tensors(batch, {})
        if tensors:
            ids, mine = self._ids_of(tensors, list(named_tensors(batch)), None)
            found = Batch(len(self._fed), RowKeys.of(ids), mine, training=True)
            if self.current is None or self.current in self._fed:
                self.current = found
            self._fed.append(found)

    @property
    def fed_alone(self) -> list[Batch]:
        """The batches fed in this step, where none entered a model in it: then the script computes by hand."""
        return [] if self._numbers[True] else self._fed

    def came_from(self, tensor: torch.Tensor, batch: Batch) -> None:
        """Remember that a module made ``tensor`` from ``batch``."""
        storage = tensor.untyped_storage()
        self._made[storage.data_ptr()] = (StorageWeakRef(storage), batch)
        if tensor.is_floating_point() and tensor.dim() > self._batch_dim:
            self._offspring.made(_real(tensor.movedim(self._batch_dim, 0)), batch.keys.ids)

    def maker(self, tensor: torch.Tensor) -> Batch | None:
        """Return the batch of this step that a module made ``tensor`` from, if it is known."""
        return _entry(self._made, tensor)

    def enter(
        self, args: Any, kwargs: Any, *, training: bool = True, module: torch.nn.Module | None = None
    ) -> tuple[Batch | None, bool]:
        """Find the batch that enters a root ``module``; also say whether it is new in this step.

        Batches of training calls and of others are numbered apart, so that a rank which evaluates in addition
        still numbers its training batches as the others do.
        """
        tensors = self._tensors(args, kwargs)
        made = [batch for t in tensors if (batch := self.maker(t)) is not None]
        if made:
            batch = next((batch for batch in made if batch.training), made[0])
            if training:
                self.current = batch
            self._offspring.found = self._offspring.found or not any(t.requires_grad for t in tensors)
            return batch, False
        if any(t.grad_fn is not None for t in tensors) or not tensors:
            return self.current, False
        carried = [(t, batch) for t in tensors if (batch := _entry(self._made_before, t)) is not None]
        fresh = [t for t in tensors if all(t is not old for old, _ in carried)]
        if not fresh:
            return self._enter_keys(carried[0][1].keys, [t for t, _ in carried], training=training)
        origin = self._origin(fresh)
        if origin is not None:
            return self._enter_keys(origin.keys, fresh, training=training)
        named = list(named_tensors((args, kwargs)))
        return self._identify(fresh, named, module, training=training)

    def _origin(self, tensors: list[torch.Tensor]) -> Batch | None:
        """Return the batch whose rows stand behind those of a leaf made for its gradient, where models hand rows on.

        A gradient penalty mixes real rows with generated ones, and rounding gives the mixture other bits every time.
        """
        made = self._offspring.found and all(t.requires_grad and not isinstance(t, torch.nn.Parameter) for t in tensors)
        size = tensors[0].shape[self._batch_dim]
        alike = [batch for batch in self._by_ids.values() if batch.size == size]
        return alike[-1] if made and alike else None

    def is_detached_output(self, args: Any, kwargs: Any) -> bool:
        """Whether a module of this step made what enters, and backward will not reach that module from here."""
        tensors = self._tensors(args, kwargs)
        return not any(t.requires_grad for t in tensors) and any(self.maker(t) is not None for t in tensors)

    def _tensors(self, args: Any, kwargs: Any) -> list[torch.Tensor]:
        every = (original(given) for _, given in named_tensors((args, kwargs)))
        found = [t for given in every if (t := own_rows(given)) is not None and is_plain(t)]
        return [t for t in found if t.dim() > self._batch_dim and t.numel()]

    def _identify(
        self,
        tensors: list[torch.Tensor],
        named: list[tuple[str, torch.Tensor]],
        module: torch.nn.Module | None,
        *,
        training: bool,
    ) -> tuple[Batch, bool]:
        ids, mine = self._ids_of(tensors, named, module)
        piece = self._pieces.find(mine, ids) if training else None
        keys = RowKeys.of(ids if piece is None else piece.ids)
        batch, new = self._enter_keys(keys, mine, training=training)
        if new and piece is not None:
            batch.piece = (piece.start, piece.stop, piece.total)
        elif new and training:
            self._pieces.keep(batch.number, keys, mine)
        return batch, new

    def _ids_of(
        self, tensors: list[torch.Tensor], named: list[tuple[str, torch.Tensor]], module: torch.nn.Module | None
    ) -> tuple[np.ndarray, list[torch.Tensor]]:
        """Return the identities of the samples, and those of the tensors that have a row of each."""
        if self._batch_dim:
            tensors = [t.movedim(self._batch_dim, 0) for t in tensors]
        sizes = [t.shape[0] for t in tensors]
        size = max(sizes, key=sizes.count)  # of several the most frequent, of equals the first
        mine = [t for t in tensors if t.shape[0] == size]
        ids = np.zeros(size, dtype=np.uint64)
        for tensor in self._padding.strip(module, named, mine):
            with np.errstate(over="ignore"):
                ids = ids * np.uint64(0x9E3779B97F4A7C15) + self._hashes(_real(tensor))
        return ids, mine

    def _hashes(self, tensor: torch.Tensor) -> np.ndarray:
        contents = row_hashes(tensor)
        known = self._offspring.known(tensor, contents.tolist())
        return contents if known is None else known

    def _enter_keys(self, keys: RowKeys, tensors: list[torch.Tensor], *, training: bool) -> tuple[Batch, bool]:
        known = self._by_ids.get((keys.token, True)) or self._by_ids.get((keys.token, training))
        batch = known or Batch(self._numbers[training], keys, tensors, training=training)
        if training:
            self.current = batch
        if known is None:
            self._numbers[training] += 1
            self._by_ids[keys.token, training] = batch
        return batch, known is None


def _entry(made: dict[int, tuple[StorageWeakRef, Batch]], tensor: torch.Tensor) -> Batch | None:
    if not made or not is_plain(tensor):
        return None
    entry = made.get(tensor.untyped_storage().data_ptr())
    return entry[1] if entry is not None and not entry[0].expired() else None


def _real(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach().resolve_neg()
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
