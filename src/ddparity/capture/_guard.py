"""Keeping the recorder out of the user's way: when nothing may be observed, and whose modes are in force meanwhile."""

import contextlib
import functools
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Concatenate, ParamSpec, Protocol, TypeVar

import torch
from torch._guards import TracingContext
from torch.autograd import forward_ad

if TYPE_CHECKING:
    from ._session import Session

P = ParamSpec("P")
R = TypeVar("R")


class Watch(Protocol):
    """A part of the recorder."""

    session: "Session"


W = TypeVar("W", bound=Watch)


def guarded(method: Callable[Concatenate[W, P], R]) -> Callable[Concatenate[W, P], R | None]:
    """Keep a fault of the recorder away from the user's program: it disables the recorder instead.

    What the recorder computes stays outside the user's modes: a counter of operations does not count it, a default
    device does not move it, a tensor subclass is not asked.
    """

    @functools.wraps(method)
    def call(self: W, *args: P.args, **kwargs: P.kwargs) -> R | None:
        if self.session.dead:
            return None
        try:
            with torch._C.DisableTorchFunctionSubclass():
                if _no_modes():
                    return method(self, *args, **kwargs)
                with _without_modes():
                    return method(self, *args, **kwargs)
        except Exception as error:
            self.session.disable(error)
            return None

    return call


def unserializable(hook: Callable[[torch.Tensor], None]) -> Callable[[torch.Tensor], None]:
    """Mark a hook on a tensor as one to leave out when the tensor is saved, without a warning."""
    setattr(hook, "__torch_unserializable__", True)  # noqa: B010 - torch's own mark on a function
    return hook


def in_backward() -> bool:
    """Whether the autograd engine is running in this thread: what runs now is recomputation, not the forward."""
    return torch._C._current_graph_task_id() != -1


def hidden() -> str | None:
    """Return why what runs now cannot be observed without changing it, or None."""
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return "inside a torch.func transform (vmap, grad, jvp)"
    if torch._C._get_tracing_state() is not None:
        return "inside torch.jit.trace"
    if TracingContext.try_get() is not None:
        return "inside a region that torch.compile is compiling"
    if torch.cuda.is_available() and torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
        return "inside the capture of a CUDA graph"
    return None


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor can be digested: dense, with values of its own in memory, no wrapper around other tensors."""
    return (
        type(tensor).__torch_dispatch__ is torch.Tensor.__torch_dispatch__
        and tensor.layout == torch.strided
        and tensor.device.type != "meta"
        and not tensor.is_nested
        and not tensor.is_quantized
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
        and not torch._C._functorch.is_legacy_batchedtensor(tensor)  # torch.autograd.grad(is_grads_batched=True)
        and not torch.nn.parameter.is_lazy(tensor)
        and not is_freed(tensor)
    )


def is_freed(tensor: torch.Tensor) -> bool:
    """Whether a tensor's memory was given back, as FSDP does with what it has gathered: reading it would crash."""
    return tensor.numel() > 0 and tensor.untyped_storage().nbytes() == 0


def _no_modes() -> bool:
    return (
        torch._C._len_torch_function_stack() == 0
        and torch._C._len_torch_dispatch_stack() == 0
        and forward_ad._current_level < 0
    )


@contextlib.contextmanager
def _without_modes() -> Generator[None]:
    from torch.utils._python_dispatch import _disable_current_modes

    with torch._C.DisableTorchFunction(), _disable_current_modes(), forward_ad._set_fwd_grad_enabled(False):
        yield
