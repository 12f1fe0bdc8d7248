"""A process group that writes down every call and hands it on unchanged, and the handles it gives out."""

import contextlib
import inspect
import sys
import time
import weakref
from collections.abc import Callable
from types import CodeType
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from ._calls import ACTIVE, DONE, LAUNCHED, enter
from ._ring import Ring
from ._signatures import SIGNATURES, Signature

if TYPE_CHECKING:
    from ._comm import CommWatch

_now = time.monotonic_ns
_C10D = dist.distributed_c10d.__file__


class RecordedWork(dist.Work):
    """The handle of a call that Python code launched: the backend's own, and a note of who waited for it and when."""

    def __init__(self, inner: Any, watch: "CommWatch", at: int, serial: int, tensors: list[torch.Tensor]) -> None:
        super().__init__()
        self._inner = inner
        self._watch = watch
        self._at = at
        self._serial = serial
        self._handled = False
        self._tensors = tensors
        self._versions = [_version(tensor) for tensor in tensors]

    def wait(self, *args: Any, **kwargs: Any) -> Any:
        """Wait as the backend does."""
        begin = _now()
        try:
            result = self._inner.wait(*args, **kwargs)
        except Exception as error:
            self._watch.failed(self._at, self._serial, error, begin)
            self._let_go()
            raise
        overwritten = any(_version(t) != v for t, v in zip(self._tensors, self._versions, strict=True))
        self._watch.waited(self._at, self._serial, begin, overwritten=overwritten and not self._handled)
        self._let_go()
        return result

    def is_completed(self) -> bool:
        """Ask as one asks the backend; a yes is as good as a wait."""
        done = self._inner.is_completed()
        if done and not self._handled:
            self._watch.polled(self._at, self._serial)
            self._let_go()
        return done

    def get_future(self) -> Any:
        """Return the backend's future; whoever has it may wait for it unseen."""
        self._watch.polled(self._at, self._serial)
        self._let_go()
        return self._inner.get_future()

    def _let_go(self) -> None:
        self._handled = True
        self._tensors = []
        self._versions = []

    def __del__(self) -> None:
        if not getattr(self, "_handled", True):
            overwritten = any(_version(t) != v for t, v in zip(self._tensors, self._versions, strict=True))
            self._watch.dropped(self._at, self._serial, self._inner, overwritten=overwritten)


_Caller = tuple[CodeType, bool, bool, bool]
"""What calls a method: its code; whether it does so itself, or C++ beneath it; whether it waits for the call next; and
whether it waits only for a handle that is there."""


def _look_at(callers: dict[int, _Caller], code: CodeType, name: str) -> _Caller:
    """Look at what calls a method, once. It holds the code, so that its id stays its own."""
    direct = name in code.co_names
    waits = direct and code.co_filename == _C10D
    none_is_fine = False
    if waits:
        with contextlib.suppress(OSError, TypeError):
            none_is_fine = "work is not None" in inspect.getsource(code)
    known = callers[id(code)] = (code, direct, waits, none_is_fine)
    return known


def _in_flight(sent: list[torch.Tensor], written: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return the tensors that nobody may write to before the wait, of those that the backend does not write itself.

    On a CPU a reduction in place writes past the version counter; what is copied back or shares memory does not.
    """
    if len(sent) != 1 or not sent[0].is_cpu:
        return []
    own = sent[0].untyped_storage().data_ptr()
    if any(t is not sent[0] and t.untyped_storage().data_ptr() == own for t in written):
        return []
    return sent


def _version(tensor: torch.Tensor) -> int:
    return -1 if tensor.is_inference() else tensor._version


def _delegated(name: str) -> Callable[..., Any]:
    def call(self: RecordedWork, *args: Any, **kwargs: Any) -> Any:
        return getattr(self._inner, name)(*args, **kwargs)

    call.__name__ = name
    return call


for _name in (
    "is_success",
    "exception",
    "result",
    "source_rank",
    "_source_rank",
    "synchronize",
    "get_future_result",
    "block_current_stream",
    "_get_duration",
    "_get_op_type",
):
    if hasattr(dist.Work, _name):
        setattr(RecordedWork, _name, _delegated(_name))


class RecordedGroup(dist.ProcessGroup):
    """Stands where the process group stood; the backends are the same objects.

    What is not overridden here is done by torch's own class on these backends, unrecorded.
    """

    def __init__(self, inner: Any, watch: "CommWatch", label: str) -> None:
        super().__init__(inner.rank(), inner.size())  # pyrefly: ignore[missing-argument]
        self.inner = inner
        self.watch = watch
        self.label = label
        self.ring: Ring | None = None
        self.label_number = 0
        self.group_rank = inner.rank()
        self.num_calls = 0
        self.num_transfers = 0

    def named_in(self, ring: Ring) -> int:
        """Return the number that a ring has for this group's name."""
        self.ring = ring
        self.label_number = ring.string(self.label)
        return self.label_number

    def getBackendName(self) -> str:  # noqa: N802 - the name that C++ looks up
        """Return the name of the backend, as the group itself would."""
        return self.inner.name()

    def get_group_store(self) -> Any:
        """Return the group's store."""
        return self.inner.get_group_store()


def _recorded(name: str, signature: Signature) -> Callable[..., Any]:
    callers: dict[int, _Caller] = {}

    def call(self: RecordedGroup, /, *args: Any, **kwargs: Any) -> Any:
        inner = getattr(self.inner, name)
        frame = sys._getframe(1)
        code = frame.f_code
        _, direct, waits, none_is_fine = callers.get(id(code)) or _look_at(callers, code, name)
        noted = enter(self, signature, args, kwargs, frame, direct, waits)
        if noted is None:
            return inner(*args, **kwargs)
        words, at, serial, is_async, described = noted
        watch = self.watch
        try:
            work = inner(*args, **kwargs)
            if waits and not is_async and work is not None:
                work.wait()
                words[at + DONE] = words[ACTIVE] = _now()
                return None if none_is_fine else work
        except Exception as error:
            watch.failed(8 * at, serial, error, 0)
            raise
        words[at + LAUNCHED] = _now()
        if work is None:
            watch.completed(8 * at, serial)
            return None
        if not direct:
            watch.native(8 * at, serial)
            return work
        sent, written = described[:2]
        if is_async and written and not signature.is_send:
            watch.pending[serial] = weakref.ref(written[0])
        return RecordedWork(work, watch, 8 * at, serial, _in_flight(sent, written) if is_async else [])

    call.__name__ = name
    return call


for _name, _signature in SIGNATURES.items():
    if hasattr(dist.ProcessGroup, _name):
        setattr(RecordedGroup, _name, _recorded(_name, _signature))
