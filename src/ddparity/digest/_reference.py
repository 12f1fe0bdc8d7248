"""Digests of numpy arrays: the definition that the torch side must agree with, and what tests compare it to."""

from typing import Any

import numpy as np
import numpy.typing as npt

from . import _keys as keys
from ._digest import Digest, Sketch
from ._place import Place, RowKeys

_WORD = {1: np.dtype("i1"), 2: np.dtype("<i2"), 4: np.dtype("<i4")}


def digest_of(
    array: npt.NDArray[Any],
    *,
    offsets: tuple[int, ...] | None = None,
    global_shape: tuple[int, ...] | None = None,
    row_keys: keys.U64 | None = None,
) -> Digest:
    """Digest an array of any shape and any bool, integer, float or complex dtype.

    Args:
        array: The tensor, or one shard of it.
        offsets: Index at which the shard starts in each dimension; None for a whole tensor.
        global_shape: Shape of the whole tensor; None for a whole tensor.
        row_keys: Identities of the samples along dimension 0, shape (samples,), uint64; excludes ``offsets``.

    Raises:
        ValueError: If offsets or identities do not fit the shape.
    """
    real = _as_real(array)
    rows_of = RowKeys.of(row_keys) if row_keys is not None else None
    index, rows = Place.of(real.shape, array.ndim, offsets, global_shape, rows_of).indices()
    values = real.reshape(-1)
    clean = np.nan_to_num(values.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
    return Digest(
        shape=array.shape,
        dtype=str(array.dtype),
        count=values.size,
        num_nan=int(np.isnan(values).sum()),
        num_inf=int(np.isinf(values).sum()),
        sum=float(clean.sum()),
        sum_abs=float(np.abs(clean).sum()),
        sum_sq=float(clean @ clean),
        minimum=float(clean.min()) if clean.size else float("inf"),
        maximum=float(clean.max()) if clean.size else float("-inf"),
        hash=hash_values(values, index, rows),
        sketch=sketch_values(clean, index, rows),
    )


def sketch_values(values: npt.NDArray[np.float64], index: keys.U64, rows: keys.U64) -> Sketch:
    """Sketch values (n,) by their index in the row and the key of their row, both (n,) uint64."""
    signs, buckets = keys.signs_and_buckets(index, rows)
    return np.bincount(buckets, weights=values * signs, minlength=keys.BLOCK).astype(np.float64, copy=False)


def hash_values(values: npt.NDArray[Any], index: keys.U64, rows: keys.U64) -> int:
    """Hash values (n,) of any real dtype by their index and the key of their row."""
    words = words_of(values)
    weights = keys.hash_weights(*word_indices(index, rows, len(words) // max(len(values), 1)))
    with np.errstate(over="ignore"):
        return int((weights * words.view(np.uint64)).sum(dtype=np.uint64))


def words_of(values: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Return the bits of values (n,) as signed words of at most 32 bits: two words, low first, for 64 bits."""
    bits = np.ascontiguousarray(values)
    return bits.view(_WORD[min(bits.dtype.itemsize, 4)]).astype(np.int64)


def word_indices(index: keys.U64, rows: keys.U64, words_each: int) -> tuple[keys.U64, keys.U64]:
    """Return index and row key of each word, from those of each element."""
    if words_each != 2:
        return index, rows
    twice = index * np.uint64(2)
    return np.stack([twice, twice + np.uint64(1)], axis=1).reshape(-1), np.repeat(rows, 2)


def _as_real(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    if not np.iscomplexobj(array):
        return array
    part = np.float32 if array.dtype.itemsize == 8 else np.float64
    return np.ascontiguousarray(array).view(part).reshape(*array.shape, 2)
