"""Digests of torch tensors: the same numbers as ``_reference``, at about the cost of reading the tensor a few times.

The sketch is one ``embedding_bag`` (a signed sum of rows of 128, grouped), measured at 0.1 ns an element on two
cores, and a rotation of 256 rows. Tables that depend on the shape alone are cached.
"""

import math
import threading
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from . import _keys as keys
from . import _small as small
from ._cache import Bounded
from ._digest import Digest, Sketch
from ._place import Place, RowKeys

_SUB_BAG = 32  # rows summed in the tensor's own precision before float64 takes over
_CHUNK = 1 << 18  # elements whose magnitudes are summed at a time: the copy stays in the cache
_NORM_ROW = 4096  # a plain float32 norm was 2e-4 off at 4 million elements; rows of 4,096 and a float64 sum are not
_SPREAD = 0x1E3779B97F4A7C15  # odd, near 2**64 / the golden ratio
_SAFE = 1e-15  # squares of float32 below this lose their smallest addends to underflow
_INT_OF_SIZE = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int32}
_EXACT_IN_FLOAT32 = {torch.float16, torch.bfloat16, torch.int16, torch.float32}


class _Bags(NamedTuple):
    """How ``embedding_bag`` sums the blocks of each group: signs and order of the blocks, starts of the bags."""

    signs: torch.Tensor
    order: torch.Tensor
    starts: torch.Tensor
    per_group: int


_bags: Bounded[_Bags] = Bounded(256 << 20)


@torch.no_grad()
def digest_tensor(
    tensor: torch.Tensor,
    *,
    offsets: tuple[int, ...] | None = None,
    global_shape: tuple[int, ...] | None = None,
    row_keys: RowKeys | None = None,
    row_start: int = 0,
    with_hash: bool = False,
) -> Digest:
    """Digest a dense tensor of any shape, dtype and device.

    Args:
        tensor: The tensor, or one shard of it.
        offsets: Index at which the shard starts in each dimension; None for a whole tensor. A tensor of one dimension
            with one offset in a whole of another number of dimensions is a range of its flattened elements.
        global_shape: Shape of the whole tensor; None for a whole tensor.
        row_keys: Identities of the samples along dimension 0 (``len(ids)`` divides ``tensor.shape[0]``).
        row_start: Elements of each sample that come before the tensor's part of it (a slice along the sequence).
        with_hash: Whether to compute the exact hash, the dearest part; needed where replicas are compared.

    Returns:
        The digest; equal to that of ``digest_of`` on the same values up to rounding, its hash exactly.

    Raises:
        ValueError: If offsets or identities do not fit the shape.
    """
    shape, dtype = tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")
    real = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    flat = real.detach().resolve_neg().contiguous().view(-1)
    factor = 2 if tensor.is_complex() else 1
    place = Place.of(tuple(real.shape), len(shape), offsets, global_shape, row_keys, row_start * factor)
    exact = None
    if flat.numel() <= small.SMALL:
        values, stats = small.statistics(_as_numpy(_working(flat)).astype(np.float64))
        sketch = small.sketch(values, place)
        if with_hash:
            exact = small.exact_hash(_as_numpy(_bits(flat)), place, flat.element_size())
    else:
        work, stats = _statistics(_working(flat))
        sketch = _sketch(work, place)
        if with_hash:
            exact = _hash(flat, place)
    return Digest(shape=shape, dtype=dtype, count=flat.numel(), hash=exact, sketch=sketch, **stats)


def row_hashes(tensor: torch.Tensor) -> keys.U64:
    """Return an identity for each row along dimension 0, from its bits alone, shape (rows,), uint64."""
    rows = tensor.shape[0]
    if tensor.numel() == 0:
        return keys.mix64(np.zeros(rows, dtype=np.uint64))
    real = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    words = _bits(real.detach().resolve_neg().contiguous().view(-1)).view(rows, -1)
    mixed = words * _SPREAD  # numbers such as 1.0 have few bits set: without this, identities would have few too
    mixed = (mixed ^ (mixed >> 32)) * _row_weights(words.shape[1], words.device)
    return keys.mix64(mixed.sum(1).cpu().numpy().view(np.uint64))


def _as_numpy(tensor: torch.Tensor) -> npt.NDArray[Any]:
    """Return a copy: ``tensor.numpy()`` shares memory and forbids its owner to resize it, which FSDP does."""
    return tensor.to("cpu", copy=True).numpy()


def _working(flat: torch.Tensor) -> torch.Tensor:
    """Return the elements in float32 where that is exact, else in float64."""
    if flat.dtype == torch.float32 or flat.dtype == torch.float64:
        return flat
    if flat.dtype in _EXACT_IN_FLOAT32 or flat.element_size() == 1:
        return flat.float()
    return flat.double()


def _statistics(work: torch.Tensor) -> tuple[torch.Tensor, dict[str, Any]]:
    """Return the elements with NaN and Inf as 0, and the statistics."""
    stats = _moments(work)
    largest = max(-stats["minimum"], stats["maximum"])
    if all(map(math.isfinite, stats.values())) and not 0.0 < largest < _SAFE:
        return work, stats
    wide = work.double()
    num_nan, num_inf = int(wide.isnan().sum()), int(wide.isinf().sum())
    wide = torch.nan_to_num(wide, nan=0.0, posinf=0.0, neginf=0.0)
    return wide, {**_moments(wide), "num_nan": num_nan, "num_inf": num_inf}


def _moments(work: torch.Tensor) -> dict[str, float]:
    low, high = torch.aminmax(work)
    packed = torch.stack([low.double(), high.double(), work.sum().double(), _sum_of_squares(work)])
    minimum, maximum, total, square = packed.tolist()
    magnitude = abs(total) if minimum >= 0.0 or maximum <= 0.0 else _sum_of_magnitudes(work)
    return {"sum": total, "sum_abs": magnitude, "sum_sq": square, "minimum": minimum, "maximum": maximum}


def _sum_of_squares(work: torch.Tensor) -> torch.Tensor:
    even = work.numel() // _NORM_ROW * _NORM_ROW
    norms = torch.linalg.vector_norm(work[:even].view(-1, _NORM_ROW), dim=1, dtype=work.dtype).double()
    if even == work.numel():
        return torch.dot(norms, norms)
    return torch.dot(norms, norms) + torch.linalg.vector_norm(work[even:]).double().square()


def _sum_of_magnitudes(work: torch.Tensor) -> float:
    if work.device.type != "cpu":
        return float(torch.linalg.vector_norm(work, 1, dtype=torch.float64))
    return math.fsum(float(chunk.abs().sum()) for chunk in work.split(_CHUNK))


def _sketch(work: torch.Tensor, place: Place) -> Sketch:
    if place.start is None:
        return small.sketch(_as_numpy(work.double()), place)
    num_rows = len(place.rows.ids)
    front = place.start % keys.BLOCK
    back = -(front + place.each) % keys.BLOCK
    if front or back:
        work = torch.nn.functional.pad(work.view(num_rows, place.each), (front, back))
    blocks = work.view(-1, keys.BLOCK)
    bags = _bags.get((place.key, blocks.dtype, blocks.device), lambda: _make_bags(place, blocks))
    sums = torch.embedding_bag(blocks, bags.order, bags.starts, False, 0, False, bags.signs)[0]
    if bags.per_group > 1:
        sums = sums.double().view(keys.GROUPS, bags.per_group, keys.BLOCK).sum(1)
    return _rotors.on(blocks.device).rotate(sums).cpu().numpy()


class _Rotor:
    """Room in which the sums of the groups are rotated, kept so that it need not be allocated for every tensor."""

    def __init__(self, device: torch.device) -> None:
        width = 2 * keys.BLOCK
        self._signs = torch.from_numpy(keys.group_signs()).to(device)
        self._signed = torch.empty_like(self._signs)
        self._twice = torch.empty(keys.BLOCK, width, dtype=torch.float64, device=device)
        # Row g is read from column 128 - g on, which rotates it by g without an index.
        self._rotated = self._twice.as_strided((keys.BLOCK, keys.BLOCK), (width - 1, 1), keys.BLOCK)

    def rotate(self, sums: torch.Tensor) -> torch.Tensor:
        """Multiply the sums of the groups, (256, 128), with their signs, rotate them and add them up: (128,)."""
        signed = self._signed.copy_(sums).mul_(self._signs)
        left, right = self._twice[:, : keys.BLOCK], self._twice[:, keys.BLOCK :]
        torch.add(signed[: keys.BLOCK], signed[keys.BLOCK :], out=left)
        right.copy_(left)
        return self._rotated.sum(0)


class _Rotors(threading.local):
    """The rotors of a thread: backward runs in threads of its own where there are accelerators."""

    def __init__(self) -> None:
        self._by_device: dict[torch.device, _Rotor] = {}

    def on(self, device: torch.device) -> _Rotor:
        """Return the rotor of a device."""
        rotor = self._by_device.get(device)
        if rotor is None:
            rotor = self._by_device[device] = _Rotor(device)
        return rotor


_rotors = _Rotors()


def _make_bags(place: Place, blocks: torch.Tensor) -> tuple[_Bags, int]:
    num_rows = len(place.rows.ids)
    ids = keys.block_ids(place.rows.ids, (place.start or 0) // keys.BLOCK, blocks.shape[0] // num_rows)
    groups, signs = keys.groups_of(ids), keys.signs_of(ids)
    order = np.argsort(groups, kind="stable")
    sizes = np.bincount(groups, minlength=keys.GROUPS)
    per_group = math.ceil(int(sizes.max()) / _SUB_BAG)
    first = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    within = np.minimum(np.arange(per_group)[None, :] * _SUB_BAG, sizes[:, None])
    bags = _Bags(
        torch.from_numpy(signs[order]).to(blocks.device, blocks.dtype),
        torch.from_numpy(order.astype(np.int64)).to(blocks.device),
        torch.from_numpy((first[:, None] + within).reshape(-1)).to(blocks.device),
        per_group,
    )
    return bags, sum(t.nbytes for t in bags[:3])


def _bits(flat: torch.Tensor) -> torch.Tensor:
    """Return the bits of each element as signed words of at most 32 bits, low word first."""
    return flat.view(_INT_OF_SIZE[flat.element_size()])


@lru_cache(maxsize=8)
def _hash_table(device: torch.device) -> torch.Tensor:
    return torch.from_numpy(keys.hash_table().view(np.int64)).to(device)


@lru_cache(maxsize=64)
def _row_weights(num: int, device: torch.device) -> torch.Tensor:
    index = np.arange(num, dtype=np.uint64)
    return torch.from_numpy(keys.hash_weights(index, np.zeros_like(index)).view(np.int64)).to(device)


def _hash(flat: torch.Tensor, place: Place) -> int:
    if place.start is None:
        return small.exact_hash(_as_numpy(_bits(flat)), place, flat.element_size())
    rows = _bits(flat).view(len(place.rows.ids), -1)
    start = place.start * (rows.shape[1] // place.each)
    sums = [_weighted_sums(rows[:, part], at) for part, at in _chunks(start, rows.shape[1])]
    parts = torch.stack(sums).cpu().numpy().view(np.uint64)
    first = start // keys.HASH_TABLE
    with np.errstate(over="ignore"):
        chunks = np.arange(first, first + len(sums), dtype=np.uint64)[:, None] + keys.mix64(place.rows.ids)[None, :]
        return int((parts * keys.chunk_weights(chunks)).sum(dtype=np.uint64))


def _chunks(start: int, num: int) -> Iterator[tuple[slice, slice]]:
    """Cut words ``start`` to ``start + num`` where the table of weights begins anew: slices of words and table."""
    done = 0
    while done < num:
        at = (start + done) % keys.HASH_TABLE
        size = min(keys.HASH_TABLE - at, num - done)
        yield slice(done, done + size), slice(at, at + size)
        done += size


def _weighted_sums(words: torch.Tensor, at: slice) -> torch.Tensor:
    """Sum words (rows, n) with the weights in that slice of the table: (rows,) int64."""
    if words.device.type == "cpu":  # einsum widens as it goes: half the time that torch takes
        table = keys.hash_table().view(np.int64)
        return torch.from_numpy(np.einsum("ri,i->r", _as_numpy(words), table[at]))
    pieces = words.split(max(1, _CHUNK // words.shape[1]))
    return torch.cat([(piece * _hash_table(words.device)[at]).sum(1) for piece in pieces])
