"""Digests in numpy, element by element: for small tensors and for shards that are no single range. No torch.

On a small tensor a call of torch costs more than the arithmetic.
"""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from . import _keys as keys
from ._cache import Bounded
from ._digest import Sketch
from ._place import Place
from ._reference import word_indices, words_of

SMALL = 8192
"""Elements up to which a tensor is small; beyond it the grouped sum over blocks is faster."""
_NO_OVERFLOW = 1e150  # values below it have finite squares; NaN is not below it

_element_tables: Bounded[tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]] = Bounded(64 << 20)
_hash_weights: Bounded[keys.U64] = Bounded(64 << 20)


def statistics(values: npt.NDArray[np.float64]) -> tuple[npt.NDArray[np.float64], dict[str, Any]]:
    """Return values (n,) with NaN and Inf as 0, and the statistics of a digest."""
    if values.size == 0:
        return values, {"sum": 0.0, "sum_abs": 0.0, "sum_sq": 0.0, "minimum": math.inf, "maximum": -math.inf}
    low, high = float(np.minimum.reduce(values)), float(np.maximum.reduce(values))
    if low > -_NO_OVERFLOW and high < _NO_OVERFLOW:
        return values, _moments(values, low, high)
    num_nan, num_inf = int(np.isnan(values).sum()), int(np.isinf(values).sum())
    values = np.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0)
    with np.errstate(over="ignore"):
        stats = _moments(values, float(values.min()), float(values.max()))
    return values, {**stats, "num_nan": num_nan, "num_inf": num_inf}


def _moments(values: npt.NDArray[np.float64], low: float, high: float) -> dict[str, Any]:
    total, square = float(np.add.reduce(values)), float(values @ values)
    magnitude = abs(total) if low >= 0.0 or high <= 0.0 else float(np.add.reduce(np.abs(values)))
    return {"sum": total, "sum_abs": magnitude, "sum_sq": square, "minimum": low, "maximum": high}


def sketch(values: npt.NDArray[np.float64], place: Place) -> Sketch:
    """Sketch values (n,) of the tensor that stands at ``place``."""
    signs, buckets = _element_tables.get(place.key, lambda: _element_table(place))
    return np.bincount(buckets, weights=values * signs, minlength=keys.BLOCK).astype(np.float64, copy=False)


def exact_hash(bits: npt.NDArray[Any], place: Place, element_size: int) -> int:
    """Hash elements given as signed words of at most 32 bits, of the tensor that stands at ``place``."""
    words_each = 2 if element_size == 8 else 1
    weights = _hash_weights.get((place.key, words_each), lambda: _word_weights(place, words_each))
    with np.errstate(over="ignore"):
        return int((weights * words_of(bits).view(np.uint64)).sum(dtype=np.uint64))


def _element_table(place: Place) -> tuple[tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]], int]:
    signs, buckets = keys.signs_and_buckets(*place.indices())
    return (signs, buckets), signs.nbytes + buckets.nbytes


def _word_weights(place: Place, words_each: int) -> tuple[keys.U64, int]:
    weights = keys.hash_weights(*word_indices(*place.indices(), words_each))
    return weights, weights.nbytes
