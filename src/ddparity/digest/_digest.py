"""The digest of one tensor, and the algebra on digests. No torch."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

Sketch = npt.NDArray[np.float64]

_WORD = 1 << 64
_UNDERFLOW = 1e-290  # a sum of squares below this may have lost all its addends


@dataclass(frozen=True, kw_only=True)
class Digest:
    """Summary of one tensor: statistics, order-free exact hash, linear sketch.

    Attributes:
        shape: Logical shape; for a shard the shape of the shard.
        dtype: Name of the dtype without ``torch.``, such as ``float32``.
        count: Number of elements (twice that for complex tensors, which are read as pairs).
        num_nan: Number of NaN; they count as 0 in every other statistic and in the sketch.
        num_inf: Number of infinities; treated likewise.
        sum: Sum of the elements.
        sum_abs: Sum of magnitudes; NaN where a merge cannot know it.
        sum_sq: Sum of squares; NaN where a merge cannot know it.
        minimum: Smallest element, +inf for an empty tensor, NaN where a merge cannot know it.
        maximum: Largest element, -inf for an empty tensor, NaN where a merge cannot know it.
        hash: Sum modulo 2**64 of weight(global index) * bits, or None where it was not computed.
        sketch: 128 signed sums of elements in float64.
    """

    shape: tuple[int, ...]
    dtype: str
    count: int
    num_nan: int = 0
    num_inf: int = 0
    sum: float
    sum_abs: float
    sum_sq: float
    minimum: float
    maximum: float
    hash: int | None = None
    sketch: Sketch = field(repr=False)

    @property
    def norm(self) -> float:
        """Euclidean norm: exact where the sum of squares is known, else estimated from the sketch."""
        if math.isfinite(self.sum_sq) and self.sum_sq > _UNDERFLOW:
            return math.sqrt(self.sum_sq)
        return _length(self.sketch)

    @property
    def finite(self) -> bool:
        """Whether the tensor held neither NaN nor infinity."""
        return self.num_nan == 0 and self.num_inf == 0


@dataclass(frozen=True, kw_only=True)
class Relation:
    """``a = factor * b`` up to ``residual``, the relative norm of what is left of ``a``."""

    factor: float
    residual: float


def same(a: Digest, b: Digest) -> bool:
    """Whether two digests are of bit-identical tensors: by hash where both have one, else by every number."""
    if a.shape != b.shape or a.dtype != b.dtype or a.count != b.count:
        return False
    if a.hash is not None and b.hash is not None:
        return a.hash == b.hash
    return np.array_equal(_numbers(a), _numbers(b), equal_nan=True) and np.array_equal(a.sketch, b.sketch)


def _numbers(digest: Digest) -> npt.NDArray[np.float64]:
    """Return every statistic; NaN stands for what a merge could not know."""
    d = digest
    return np.array([d.num_nan, d.num_inf, d.sum, d.sum_abs, d.sum_sq, d.minimum, d.maximum], dtype=np.float64)


def merge_replicas(parts: Sequence[Digest]) -> tuple[Digest, bool]:
    """Merge copies of one tensor (Replicate): the first copy, and whether all are bit-identical."""
    if not parts:
        raise ValueError("cannot merge an empty list of digests")
    return parts[0], all(same(parts[0], part) for part in parts[1:])


def merge_shards(parts: Sequence[Digest], shape: tuple[int, ...] | None = None) -> Digest:
    """Merge disjoint parts (Shard): everything adds up; ``shape`` is the logical shape if it is known."""
    hashes = [part.hash for part in parts]
    return replace(
        _linear(parts, [1.0] * len(parts)),
        shape=shape if shape is not None else parts[0].shape,
        count=sum(part.count for part in parts),
        sum_abs=math.fsum(part.sum_abs for part in parts),
        sum_sq=math.fsum(part.sum_sq for part in parts),
        minimum=min(part.minimum for part in parts),
        maximum=max(part.maximum for part in parts),
        hash=None if None in hashes else sum(h for h in hashes if h is not None) % _WORD,
    )


def merge_sum(parts: Sequence[Digest]) -> Digest:
    """Merge addends of one tensor (Partial(sum)): sum and sketch are exact, the rest is unknown (NaN).

    A single addend is the tensor: nothing about it becomes unknown.
    """
    return _linear(parts, [1.0] * len(parts))


def merge_mean(parts: Sequence[Digest]) -> Digest:
    """Merge what is to be averaged (Partial(mean))."""
    return _linear(parts, [1.0 / max(len(parts), 1)] * len(parts))


def merge_weighted(parts: Sequence[Digest], weights: Sequence[float]) -> Digest:
    """Merge with a weight a part; the laws of :func:`merge_sum`."""
    return _linear(parts, weights)


def scaled(digest: Digest, factor: float) -> Digest:
    """Return the digest of ``factor * tensor``; the hash is lost unless the factor is 1."""
    if factor == 1.0:
        return digest
    low, high = sorted((factor * digest.minimum, factor * digest.maximum))
    return replace(
        digest,
        sum=factor * digest.sum,
        sum_abs=abs(factor) * digest.sum_abs,
        sum_sq=factor * factor * digest.sum_sq,
        minimum=low,
        maximum=high,
        hash=None,
        sketch=factor * digest.sketch,
    )


def distance(a: Digest, b: Digest) -> float:
    """Estimate the Euclidean norm of ``a - b``: within 0.8 to 1.25 of the true one in 95 % of cases and more.

    It is exact where at most 128 neighbouring elements differ, and infinite where the sketches overflow.
    """
    if np.array_equal(a.sketch, b.sketch):
        return 0.0
    with np.errstate(invalid="ignore", over="ignore"):
        return _length(a.sketch - b.sketch)


def relative_error(a: Digest, reference: Digest, *, scale: float = 0.0) -> float:
    """Estimate ``norm(a - reference) / max(norm(reference), scale)``; 0 where both vanish, inf where only that does."""
    difference = distance(a, reference)
    if difference == 0.0:
        return 0.0
    below = max(reference.norm, scale)
    return difference / below if below > 0.0 else math.inf


def relate(a: Digest, b: Digest) -> Relation:
    """Find the factor c for which ``a = c * b`` fits best in the sketches, and the relative norm of the rest.

    Where ``b`` is zero and ``a`` is not, no factor fits: it is NaN and the residual is 1. Where ``a`` is zero the
    factor is 0; the residual is then 0 if ``b`` is zero too, and 1 otherwise: zero is no trace of ``b``.
    """
    of_a, of_b = float(np.abs(a.sketch).max()), float(np.abs(b.sketch).max())
    if of_a == 0.0 or of_b == 0.0:
        return Relation(factor=0.0 if of_a == 0.0 else math.nan, residual=0.0 if of_a == of_b else 1.0)
    unit_a, unit_b = a.sketch / of_a, b.sketch / of_b  # squares of neither overflow or vanish
    factor = float(unit_a @ unit_b) / float(unit_b @ unit_b)
    residual = float(np.linalg.norm(unit_a - factor * unit_b) / np.linalg.norm(unit_a))
    return Relation(factor=factor * (of_a / of_b), residual=residual)


def _length(sketch: Sketch) -> float:
    """Return the Euclidean norm without overflow or underflow on the way; inf where a number is not finite."""
    largest = float(np.abs(sketch).max())
    if not math.isfinite(largest):
        return math.inf
    return largest * float(np.linalg.norm(sketch / largest)) if largest > 0.0 else 0.0


def _linear(parts: Sequence[Digest], weights: Sequence[float]) -> Digest:
    if not parts:
        raise ValueError("cannot merge an empty list of digests")
    if len(parts) == len(weights) == 1:
        return scaled(parts[0], weights[0])
    sketch = np.zeros_like(parts[0].sketch)
    for part, weight in zip(parts, weights, strict=True):
        sketch = sketch + weight * part.sketch
    return Digest(
        shape=parts[0].shape,
        dtype=parts[0].dtype,
        count=parts[0].count,
        num_nan=sum(part.num_nan for part in parts),
        num_inf=sum(part.num_inf for part in parts),
        sum=math.fsum(part.sum * weight for part, weight in zip(parts, weights, strict=True)),
        sum_abs=math.nan,
        sum_sq=math.nan,
        minimum=math.nan,
        maximum=math.nan,
        hash=None,
        sketch=sketch,
    )
