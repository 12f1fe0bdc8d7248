"""Digests of numpy arrays: the definition that the torch side must agree with, and what tests compare it to."""

import numpy as np
import numpy.typing as npt

from . import _keys as keys
from ._digest import Digest, Sketch

_BITS = {1: np.int8, 2: np.int16, 4: np.int32, 8: np.int64}


def digest_of(
    array: npt.NDArray,
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
        row_keys: Identities of the samples along dimension 0, shape (rows,), uint64; excludes ``offsets``.
    """
    real = _as_real(array)
    index, rows = _indices(real.shape, array, offsets, global_shape, row_keys)
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
    blocks, place = index // np.uint64(keys.BLOCK), (index % np.uint64(keys.BLOCK)).astype(np.int64)
    ids = element_ids(blocks, rows)
    group = keys.groups_of(ids)
    signs = keys.signs_of(ids) * keys.sign_rows()[group // keys.BLOCK, place]
    return np.bincount((place + group) % keys.BLOCK, weights=values * signs, minlength=keys.BLOCK)


def element_ids(blocks: keys.U64, rows: keys.U64) -> keys.U64:
    """Return the block id of each element: what :func:`_keys.block_ids` gives block by block."""
    with np.errstate(over="ignore"):
        row_part = keys.mix64(rows + keys._SEED_BLOCK)
        return keys.mix64(row_part + keys.mix64(blocks + keys._SEED_BLOCK))


def hash_values(values: npt.NDArray, index: keys.U64, rows: keys.U64) -> int:
    """Hash values (n,) of any dtype by their index and the key of their row."""
    bits = np.ascontiguousarray(values).view(_BITS[values.dtype.itemsize]).astype(np.int64).view(np.uint64)
    table = keys.hash_table()[(index % np.uint64(keys.HASH_TABLE)).astype(np.int64)]
    with np.errstate(over="ignore"):
        weights = table * keys.chunk_weights(index // np.uint64(keys.HASH_TABLE) + keys.mix64(rows))
        return int((weights * bits).sum(dtype=np.uint64))


def _as_real(array: npt.NDArray) -> npt.NDArray:
    if not np.iscomplexobj(array):
        return array
    part = np.float32 if array.dtype.itemsize == 8 else np.float64
    return np.ascontiguousarray(array).view(part).reshape(*array.shape, 2)


def _indices(
    shape: tuple[int, ...],
    array: npt.NDArray,
    offsets: tuple[int, ...] | None,
    global_shape: tuple[int, ...] | None,
    row_keys: keys.U64 | None,
) -> tuple[keys.U64, keys.U64]:
    extra = shape[array.ndim :]
    if row_keys is not None:
        each = int(np.prod(shape[1:], dtype=np.int64))
        index = np.tile(np.arange(each, dtype=np.uint64), len(row_keys))
        return index, np.repeat(np.asarray(row_keys, dtype=np.uint64), each)
    if offsets is None or global_shape is None:
        offsets, global_shape = (0,) * array.ndim, array.shape
    index = keys.flat_indices(shape, (*offsets, *(0 for _ in extra)), (*global_shape, *extra))
    return index, np.zeros(index.size, dtype=np.uint64)
