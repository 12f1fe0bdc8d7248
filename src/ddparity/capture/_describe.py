"""Describing inputs without keeping them: structure, shapes, dtypes, ranges, padding."""

import decimal
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from ddparity.trace._inputs import InputSpec, Padding

_MAX_DEPTH = 6
_MAX_ITEMS = 64
_FLOAT_DIGITS = 2
_MAX_ELEMENTS = 1 << 29
_LOOKED_AT = 1 << 25
"""Elements that are looked at, of the first rows; a larger array is described by them."""
_CHANCE = 0.05
"""Share of a row's own values that may equal the padding."""


class NotDescribable(ValueError):
    """A value of a kind that nothing can be made up for; the message names it."""


def describe(value: Any, depth: int = 0) -> InputSpec:
    """Return what is known of a value.

    Raises:
        NotDescribable: It is, or holds, something that is no tensor, array, number, text or container of these.
    """
    if isinstance(value, torch.Tensor):
        return _tensor(value, "tensor")
    if isinstance(value, (np.ndarray, np.generic)):
        return _array(np.asarray(value))
    if value is None or isinstance(value, (str, bytes)):
        return InputSpec(kind="none" if value is None else "text")
    if isinstance(value, bool):
        return InputSpec(kind="flag", low=float(value), high=float(value))
    if isinstance(value, (int, float)):
        low, high = _range(float(value), float(value), whole=isinstance(value, int))
        return InputSpec(kind="number", dtype=type(value).__name__, low=low, high=high, whole=isinstance(value, int))
    if depth >= _MAX_DEPTH:
        raise NotDescribable(f"containers nested more than {_MAX_DEPTH} deep")
    return _container(value, depth + 1)


def _container(value: Any, depth: int) -> InputSpec:
    if isinstance(value, np.lib.npyio.NpzFile):
        return _mapping({key: value[key] for key in value.files}, "table", depth)
    if isinstance(value, Mapping):
        return _mapping(value, "dict" if type(value) is dict else "table", depth)
    if type(value) not in (tuple, list):
        raise NotDescribable(f"a {type(value).__name__}")
    if type(value) is list and len(value) > 1:
        alike = describe(value[0], depth)
        try:
            for item in value[1:]:
                alike = joined(alike, describe(item, depth), keep=False)
        except NotDescribable:
            pass
        else:
            return InputSpec(kind="repeated", shapes=[[len(value)]], items=[alike])
    if len(value) > _MAX_ITEMS:
        raise NotDescribable(f"a {type(value).__name__} of {len(value)} different things")
    return InputSpec(kind=type(value).__name__, items=[describe(item, depth) for item in value])


def _mapping(value: Mapping[Any, Any], kind: str, depth: int) -> InputSpec:
    if not all(isinstance(key, str) for key in value):
        raise NotDescribable("a dictionary whose keys are no texts")
    if kind == "table":  # of a library's container only what are data: no descriptions
        value = {key: item for key, item in value.items() if isinstance(item, (torch.Tensor, np.ndarray, list))}
    if len(value) > _MAX_ITEMS * 16:
        raise NotDescribable(f"a dictionary of {len(value)} entries")
    return InputSpec(kind=kind, keys=list(value), items=[describe(item, depth) for item in value.values()])


def _array(value: np.ndarray) -> InputSpec:
    if value.dtype.kind in "US":
        return InputSpec(kind="repeated", shapes=[list(value.shape)], items=[InputSpec(kind="text")])
    if value.dtype.kind not in "fiub" or value.size > _MAX_ELEMENTS:
        raise NotDescribable(f"an array of {value.size} x {value.dtype}")
    part = _first_rows(value)
    widened = part.astype(np.float64) if value.dtype.kind == "f" else part.astype(np.int64)
    spec = _tensor(torch.from_numpy(np.ascontiguousarray(widened).reshape(part.shape)), "array")
    spec.dtype, spec.shapes = str(value.dtype), [list(value.shape)]
    return spec


def _first_rows(value: Any) -> Any:
    size = math.prod(value.shape)
    return value if size <= _LOOKED_AT else value[: max(1, _LOOKED_AT * value.shape[0] // size)]


def _tensor(value: torch.Tensor, kind: str) -> InputSpec:
    plain = value.layout is torch.strided and not value.is_complex() and not value.is_quantized
    if not plain or value.numel() > _MAX_ELEMENTS:
        raise NotDescribable(f"a tensor of {value.dtype} and layout {value.layout}")
    spec = InputSpec(kind=kind, dtype=str(value.dtype).removeprefix("torch."), shapes=[list(value.shape)])
    if value.numel() == 0:
        return spec
    found = _first_rows(value.detach()).cpu()
    found = found.double() if found.is_floating_point() else found.long()
    spec.whole = not found.is_floating_point() or bool((found == found.round()).all())
    if _counts_up(found):
        spec.low = spec.high = float(found.reshape(-1)[0])
        spec.counted = True
        return spec
    spec.padding, filled = _padding(found)
    own = found if filled is None else found[~filled]
    own = own[torch.isfinite(own)] if own.is_floating_point() else own
    if own.numel():
        spec.low, spec.high = _range(float(own.min()), float(own.max()), whole=spec.whole)
    return spec


def _counts_up(value: torch.Tensor) -> bool:
    if value.dim() not in (1, 2) or value.shape[-1] < 4:
        return False
    first = value.reshape(-1, value.shape[-1])[0, 0]
    return bool((value == first + torch.arange(value.shape[-1])).all())


def _padding(value: torch.Tensor) -> tuple[Padding | None, torch.Tensor | None]:
    """Find the value with which the rows of a (rows, length) tensor were filled up, and where that stands."""
    if value.dim() != 2 or value.shape[0] < 2 or value.shape[1] < 3:
        return None, None
    for left in (False, True):
        rows = value.flip(1) if not left else value  # the filling comes first in either case
        filler = rows[:, 0].mode().values
        run = (rows == filler).long().cumprod(1)
        lengths = run.sum(1)
        own = run == 0
        if int(lengths.max()) < 2 or not bool(own.any()) or int((lengths > 0).sum()) * 2 < len(lengths):
            continue
        if bool((lengths == lengths[0]).all()) and int(lengths[0]) < 2:
            continue
        if filler and not bool(rows[own].any()):
            continue  # a mask: what it marks is no filling
        if float((rows[own] == filler).double().mean()) > _CHANCE:
            continue
        kept = value.shape[1] - lengths
        found = Padding(left=left, value=float(filler), shortest=int(kept.min()), longest=int(kept.max()))
        return found, run.bool() if left else run.bool().flip(1)
    return None, None


def _range(low: float, high: float, *, whole: bool) -> tuple[float | None, float | None]:
    """Return extremes; those of fractions rounded outwards to two digits, so that no value of the data is kept."""
    if not (math.isfinite(low) and math.isfinite(high)):
        return None, None
    return (low, high) if whole else (_outwards(low, decimal.ROUND_FLOOR), _outwards(high, decimal.ROUND_CEILING))


def _outwards(value: float, towards: str) -> float:
    return float(decimal.Context(prec=_FLOAT_DIGITS, rounding=towards).create_decimal(decimal.Decimal(value)))


def joined(one: InputSpec, two: InputSpec, *, keep: bool = True) -> InputSpec:
    """Return what is known of both together; shapes stand one after the other, unless one is enough.

    Raises:
        NotDescribable: They are of different structure.
    """
    if (one.kind, one.dtype, one.keys, len(one.items)) != (two.kind, two.dtype, two.keys, len(two.items)):
        raise NotDescribable(f"values of changing structure: {one.kind} {one.dtype}, then {two.kind} {two.dtype}")
    if not keep and one.shapes[:1] != two.shapes[:1]:
        raise NotDescribable("things of different shape")
    lows = [spec.low for spec in (one, two) if spec.low is not None]
    highs = [spec.high for spec in (one, two) if spec.high is not None]
    return InputSpec(
        kind=one.kind,
        dtype=one.dtype,
        shapes=one.shapes + two.shapes if keep else one.shapes,
        low=min(lows, default=None),
        high=max(highs, default=None),
        whole=one.whole and two.whole,
        counted=one.counted and two.counted,
        padding=_both(one.padding, two.padding),
        keys=one.keys,
        items=[joined(a, b, keep=keep) for a, b in zip(one.items, two.items, strict=True)],
    )


def _both(one: Padding | None, two: Padding | None) -> Padding | None:
    if one is None or two is None or (one.left, one.value) != (two.left, two.value):
        return None if one is None or two is None else one
    shortest, longest = min(one.shortest, two.shortest), max(one.longest, two.longest)
    return Padding(left=one.left, value=one.value, shortest=shortest, longest=longest)
