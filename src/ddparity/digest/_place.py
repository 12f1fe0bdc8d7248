"""Where the elements of a tensor stand in the logical one: by position, or by the samples their rows belong to."""

import math
from collections.abc import Hashable
from typing import NamedTuple

import numpy as np

from . import _keys as keys

Shape = tuple[int, ...]


class RowKeys(NamedTuple):
    """Identities of the samples along dimension 0: ``ids`` (rows,) uint64, and one number that stands for all."""

    ids: keys.U64
    token: int

    @classmethod
    def of(cls, ids: keys.U64) -> "RowKeys":
        """Make row keys from identities in the order of the rows."""
        return cls(ids, hash(ids.tobytes()))


POSITION = RowKeys(np.zeros(1, dtype=np.uint64), 0)
"""The single row of a tensor that is keyed by position."""


class Place(NamedTuple):
    """Rows of equal length, each with a key; or one shard of a tensor that is keyed by position.

    Attributes:
        rows: Keys of the rows.
        each: Elements in a row.
        start: Index in the row at which the tensor starts; None if its elements are no single range.
        shard: Shape and offsets of the shard and shape of the whole, where ``start`` is None.
    """

    rows: RowKeys
    each: int
    start: int | None = 0
    shard: tuple[Shape, Shape, Shape] | None = None

    @classmethod
    def of(
        cls,
        shape: Shape,
        ndim: int,
        offsets: Shape | None,
        global_shape: Shape | None,
        row_keys: RowKeys | None,
        row_start: int = 0,
    ) -> "Place":
        """Describe a tensor.

        Args:
            shape: Its shape, with a last dimension of 2 added if it is complex.
            ndim: Number of its dimensions without that one.
            offsets: Index at which a shard starts in each dimension, else None; one number for a one-dimensional
                range of the flattened whole.
            global_shape: Shape of the whole tensor of a shard, else None.
            row_keys: Identities of the samples along dimension 0; each has the same number of rows.
            row_start: Index in each sample's elements at which the tensor's part of it starts.

        Raises:
            ValueError: If sample identities come with offsets, or the elements cannot be shared among them.
        """
        num = math.prod(shape)
        if row_keys is not None:
            return cls._by_sample(shape, num, offsets, row_keys, row_start)
        if offsets is None or global_shape is None:
            return cls(POSITION, num)
        extra = shape[ndim:]
        if len(shape) == 1 == len(offsets) != len(global_shape):  # a range of the flattened whole
            return cls(POSITION, num, offsets[0])
        offsets, total = (*offsets, *(0 for _ in extra)), (*global_shape, *extra)
        if not len(shape) == len(offsets) == len(total):
            raise ValueError(f"a shard of shape {shape} cannot stand at {offsets} of a tensor of shape {total}")
        start = keys.contiguous_start(shape, offsets, total)
        return cls(POSITION, num, start, (shape, offsets, total) if start is None else None)

    @classmethod
    def _by_sample(cls, shape: Shape, num: int, offsets: Shape | None, row_keys: RowKeys, row_start: int) -> "Place":
        num_rows = len(row_keys.ids)
        if offsets is not None:
            raise ValueError("a tensor is keyed by sample or by position: give row_keys or offsets")
        if num and (num_rows == 0 or shape[0] % num_rows):
            raise ValueError(f"{num_rows} sample identities do not divide the {shape[:1]} rows of shape {shape}")
        return cls(row_keys, num // num_rows if num_rows else 0, row_start)

    @property
    def key(self) -> Hashable:
        """What tables may be cached by."""
        return self.rows.token, len(self.rows.ids), self.each, self.start, self.shard

    def indices(self) -> tuple[keys.U64, keys.U64]:
        """Return index in its row and key of its row of each element, both (n,), in the tensor's order."""
        if self.shard is not None:
            index = keys.flat_indices(*self.shard)
            return index, np.zeros(index.size, dtype=np.uint64)
        num_rows, start = len(self.rows.ids), self.start or 0
        index = np.tile(np.arange(start, start + self.each, dtype=np.uint64), num_rows)
        return index, np.repeat(np.asarray(self.rows.ids, dtype=np.uint64), self.each)
