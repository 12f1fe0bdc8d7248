"""Making up inputs from their description: the same ones in every process, whatever the state of its generators."""

import hashlib
from typing import Any

import numpy as np
import torch

from ddparity.trace._inputs import InputSpec

TEXT = "synthetic"


class Table(dict[str, Any]):
    """Arrays by name, as entries and as attributes: what libraries hand out as a bunch or an archive."""

    @property
    def files(self) -> list[str]:
        """The names."""
        return list(self)

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"{name!r} is not among the inputs that were made up: {', '.join(self)}") from None

    def __enter__(self) -> "Table":
        return self

    def __exit__(self, *_: object) -> None:
        return None


def made_up(spec: InputSpec, name: str, time: int = 0) -> Any:
    """Return a value that fits a description.

    Args:
        spec: The description.
        name: What it is made for; other names give other values.
        time: The how manyth it is; its shape is the one that came at that time.
    """
    return _Making(f"{name}/{time}", time).value(spec)


class _Making:
    def __init__(self, seed: str, time: int) -> None:
        self._seed = seed
        self._time = time
        self._number = 0

    def value(self, spec: InputSpec) -> Any:
        self._number += 1
        if spec.kind in ("tensor", "array"):
            tensor = self._tensor(spec)
            return tensor if spec.kind == "tensor" else tensor.numpy().astype(np.dtype(spec.dtype))
        if spec.kind in ("number", "flag"):
            found = self._drawn(spec, [1]).item()
            return bool(found) if spec.kind == "flag" else int(found) if spec.dtype == "int" else float(found)
        if spec.kind in ("none", "text"):
            return None if spec.kind == "none" else TEXT
        if spec.kind == "repeated":
            return [self.value(spec.items[0]) for _ in range(self._shape(spec)[0])]
        items = [self.value(item) for item in spec.items]
        if spec.kind in ("dict", "table"):
            return (dict if spec.kind == "dict" else Table)(zip(spec.keys, items, strict=True))
        return tuple(items) if spec.kind == "tuple" else items

    def _shape(self, spec: InputSpec) -> list[int]:
        return spec.shapes[self._time % len(spec.shapes)]

    def _tensor(self, spec: InputSpec) -> torch.Tensor:
        shape = self._shape(spec)
        if spec.counted:
            found = (torch.arange(shape[-1], device="cpu") + round(spec.low or 0)).expand(shape).contiguous()
        else:
            found = self._drawn(spec, shape)
        if spec.padding is not None and len(shape) == 2:
            found = self._padded(spec, found)
        kind = spec.dtype if spec.kind == "tensor" else "float64" if found.is_floating_point() else "int64"
        return found.to(getattr(torch, kind))

    def _drawn(self, spec: InputSpec, shape: list[int]) -> torch.Tensor:
        low, high = spec.low, spec.high
        if low is None or high is None:
            return torch.zeros(shape, dtype=torch.float64, device="cpu")
        generator = self._generator(str(self._number))
        if spec.whole:
            drawn = torch.randint(int(low), int(high) + 1, shape, generator=generator, device="cpu")
            return drawn if spec.dtype.startswith(("int", "uint", "bool")) else drawn.double()
        return low + (high - low) * torch.rand(shape, generator=generator, dtype=torch.float64, device="cpu")

    def _padded(self, spec: InputSpec, found: torch.Tensor) -> torch.Tensor:
        """Fill up rows; those of all tensors of a batch end together, as tokens, masks and targets do."""
        padding, (rows, length) = spec.padding, found.shape
        assert padding is not None
        share = torch.rand(rows, generator=self._generator("lengths"), dtype=torch.float64, device="cpu")
        longest = min(padding.longest, length)
        own = padding.shortest + ((longest - padding.shortest + 1) * share).long().clamp(max=longest)
        place = torch.arange(length, device="cpu")[None]
        filled = place < (length - own)[:, None] if padding.left else place >= own[:, None]
        value = torch.tensor(padding.value, dtype=found.dtype, device="cpu")
        return torch.where(filled, value, found)

    def _generator(self, what: str) -> torch.Generator:
        digest = hashlib.blake2b(f"{self._seed}/{what}".encode(), digest_size=7).digest()
        return torch.Generator("cpu").manual_seed(int.from_bytes(digest, "little"))
