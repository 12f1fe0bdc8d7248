"""Numbers that the script makes of an evaluation: what it reads out of tensors, and what it reduces over the ranks.

From the first call of a model that does not train until training goes on, every small tensor that becomes a Python
number is noted by the line of the user's code that read it: the last value of each line, and whether the ranks had
talked to each other since the last batch. So a metric is seen although nobody logs it.
"""

import functools
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from ddparity.trace import Event

from ._guard import guarded, is_plain

if TYPE_CHECKING:
    from ._session import Session

_READERS = ("item", "tolist", "__float__", "__int__")
_COLLECTIVES = ("all_reduce", "reduce", "all_gather", "all_gather_into_tensor", "all_gather_object", "gather_object")
_MAX_NUMBERS = 16
_MAX_LINES = 64
_MAX_REDUCED = 16
_MAX_FRAMES = 25
_OURS = str(Path(__file__).parent)
_LOADER = "/torch/utils/data/"
_TORCH = ("/torch/", "<frozen")
_LIBRARIES = "site-packages"
_KEY = re.compile(r"""["']([\w./-]+)["']\s*:[^,{}]*$""")
_KEYWORD = re.compile(r"""(\w+)\s*=(?!=)[^,()]*$""")
_RECEIVER = re.compile(r"(\w+)[\])]*\s*$")


@dataclass
class Read:
    """The last value that one place of the code read."""

    code: CodeType
    at: int
    values: list[float]
    reduced: bool
    count: int = 1


class MetricWatch:
    """Notes reads and small reductions during an evaluation; outside of one it costs a call and a test."""

    def __init__(self, session: "Session") -> None:
        self.session = session
        self.forked()

    def forked(self) -> None:
        """Begin anew in a child process."""
        self.active = False
        """Whether an evaluation goes on: a batch entered a model without training it, and training has not gone on."""
        self._step = 0
        self._talked = False
        self._reads: dict[tuple[CodeType, int], Read] = {}
        self._reduced: list[dict[str, Any]] = []
        self._num_batches = 0
        self._dropped: dict[int, int] = {}

    def install(self) -> None:
        """Put the wrappers in place."""
        for name in _READERS:
            setattr(torch.Tensor, name, self._reader(getattr(torch.Tensor, name)))
        if dist.is_available():
            for name in _COLLECTIVES:
                if hasattr(dist, name):
                    setattr(dist, name, self._collective(getattr(dist, name), sums=name == "all_reduce"))

    def evaluated(self) -> None:
        """A batch entered a model without training it."""
        if not self.active:
            self.active, self._step = True, self.session.step
        self._talked = False
        self._num_batches += 1

    def dropped(self, num: int) -> None:
        """A framework took ``num`` rows, which it had repeated to fill the last batch of all ranks, out of a result.

        It does so with every result of that batch.
        """
        if self.active and num > 0:
            self._dropped[self._num_batches] = max(num, self._dropped.get(self._num_batches, 0))

    def close(self) -> None:
        """The evaluation is over: write what was read."""
        if not self.active:
            return
        self.active = False
        writer = self.session.writer
        for read in self._reads.values():
            place = _Place.of(read.code, read.at)
            for number, value in enumerate(read.values):
                writer.event(
                    Event.METRIC,
                    step=self._step,
                    name=place.name if len(read.values) == 1 else f"{place.name}.{number}",
                    value=value,
                    at=place.at,
                    reduced=read.reduced,
                    count=read.count,
                )
        for reduced in self._reduced:
            writer.event(Event.EVAL_REDUCE, step=self._step, **reduced)
        if self._dropped:
            writer.event(Event.EVAL_DROPPED, step=self._step, value=float(sum(self._dropped.values())))
        self._reads.clear()
        self._reduced.clear()
        self._dropped.clear()

    def _reader(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        @functools.wraps(original)
        def read(tensor: Any) -> Any:
            value = original(tensor)
            if self.active and not torch.compiler.is_compiling():
                self._read(value, sys._getframe(1))
            return value

        return read

    @guarded
    def _read(self, value: Any, frame: Any) -> None:
        values = _numbers(value)
        user = _user_frame(frame)
        if not values or user is None or not self.session.may_record() or not self.session.on_training_thread():
            return
        key = (user.f_code, user.f_lasti)
        known = self._reads.get(key)
        if known is not None:
            known.values, known.reduced, known.count = values, self._talked, known.count + 1
        elif len(self._reads) < _MAX_LINES:
            self._reads[key] = Read(*key, values, self._talked)

    def _collective(self, original: Callable[..., Any], *, sums: bool) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            if not self.active or torch.compiler.is_compiling():
                return original(*args, **kwargs)
            before = self._before(args, kwargs) if sums else None
            result = original(*args, **kwargs)
            self._after(before, args, kwargs, done=result is None)
            return result

        return call

    @guarded
    def _before(self, args: Any, kwargs: Any) -> list[float] | None:
        return _small(args[0] if args else kwargs.get("tensor"))

    @guarded
    def _after(self, before: list[float] | None, args: Any, kwargs: Any, *, done: bool) -> None:
        self._talked = True
        after = _small(args[0] if args else kwargs.get("tensor")) if before is not None and done else None
        if before is not None and after is not None and len(self._reduced) < _MAX_REDUCED:
            self._reduced.append({"before": before, "after": after})


@dataclass(frozen=True)
class _Place:
    """Where a number was read: ``file.py:line:column`` and the name that the code gives it."""

    at: str
    name: str

    @classmethod
    def of(cls, code: CodeType, lasti: int) -> "_Place":
        file = Path(code.co_filename).name
        line, _, column, end = list(code.co_positions())[lasti // 2]
        if line is None or column is None or end is None:
            return cls(f"{file}:{code.co_firstlineno}", code.co_name)
        import linecache

        text = linecache.getline(code.co_filename, line)
        before, call = text[:column], text[column:end]
        receiver = _RECEIVER.search(re.sub(r"\.\w+\(.*$", "", call)) if call.endswith(")") else None
        found = _KEY.search(before) or _KEYWORD.search(before) or receiver
        return cls(f"{file}:{line}:{column}", found[1] if found else code.co_name)


def _user_frame(frame: Any) -> Any:
    """Return the nearest frame that is neither torch's nor ours.

    None where that is another installed library's, such as a framework's loop: what it reads is no number of the
    user's, as little as what a loader reads, its workers' seed for one.
    """
    for _ in range(_MAX_FRAMES):
        if frame is None:
            return None
        name = frame.f_code.co_filename
        if _LOADER in name:
            return None
        if not name.startswith(_OURS) and not any(part in name for part in _TORCH):
            return None if _LIBRARIES in name else frame
        frame = frame.f_back
    return None


def _numbers(value: Any) -> list[float]:
    values = value if isinstance(value, list) else [value]
    if not 0 < len(values) <= _MAX_NUMBERS or not all(type(v) in (int, float) for v in values):
        return []
    return [float(v) for v in values]


def _small(tensor: Any) -> list[float] | None:
    if not isinstance(tensor, torch.Tensor) or not is_plain(tensor) or not 0 < tensor.numel() <= _MAX_NUMBERS:
        return None
    if tensor.is_complex():
        return None
    return [float(v) for v in tensor.detach().reshape(-1).double().cpu().numpy()]
