"""Fake tensors that answer when a script reads a number, and the numbers that a real step read at the same places.

Most scripts look at values without depending on them: they print the loss. A fraction then reads as 0. Where a script
may decide by what it reads (a truth, a whole number such as the longest length), or cannot go on with a 0, the values
of a real step on two samples are used: each line of code reads again what it read then.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

Values = dict[str, list[float | int | bool]]
_READ = torch.ops.aten._local_scalar_dense.default
_LIBRARY, _HERE = str(Path(torch.__file__).parent), str(Path(__file__).parent)


class ValueNeeded(Exception):
    """A script decides by a value that no fake tensor has."""


class AnsweringFakes(FakeTensorMode):
    """A fake mode in which reading a number works.

    Args:
        values: What a real step read, by place; None to answer with neutral numbers.
    """

    def __init__(self, values: Values | None) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self._values = values
        self._read: dict[str, int] = {}

    def dispatch(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation on shapes alone; answer where it reads a number."""
        try:
            return super().dispatch(func, types, args, kwargs if kwargs is not None else {})
        except DataDependentOutputException:
            if func is not _READ:
                raise
            return self._answer(args[0])

    def _answer(self, tensor: torch.Tensor) -> Any:
        if self._values is not None:
            place = reader()
            read = self._values.get(place)
            if not read:
                raise ValueNeeded(f"no value was read at {place} in the real step")
            count = self._read.get(place, 0)
            self._read[place] = count + 1
            return read[min(count, len(read) - 1)]
        if not tensor.is_floating_point():
            raise ValueNeeded(f"the script may decide by a value that it reads at {reader()}")
        return 0.0


class ValueRecorder(TorchDispatchMode):
    """Notes what a real step reads, and where."""

    def __init__(self) -> None:
        super().__init__()
        self.values: Values = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation and note the number that it reads."""
        result = func(*args, **(kwargs or {}))
        if func is _READ and isinstance(result, (bool, int, float)):
            self.values.setdefault(reader(), []).append(result)
        return result


def reader() -> str:
    """Return the place of the code outside of torch that reads, ``file:line``."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        file = frame.f_code.co_filename
        if not file.startswith((_LIBRARY, _HERE)) and not file.startswith("<"):
            break
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def let_fakes_be_shown() -> None:
    """Let scripts format and convert fake tensors, as they do for their logs."""
    fakes: Any = FakeTensor

    def formatted(self: torch.Tensor, spec: str) -> str:
        return format(self.item(), spec) if self.dim() == 0 else object.__format__(self, "")

    def converted(self: torch.Tensor, **_: Any) -> Any:
        return np.zeros(tuple(self.shape), dtype=torch.empty(0, dtype=self.dtype, device="meta").dtype.__str__()[6:])

    fakes.__format__ = formatted
    fakes.numpy = converted
