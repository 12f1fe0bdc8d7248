"""What torch has no hook for: the loss that backward is called on, clipping, loss scaling, loading of state."""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.utils import clip_grad

from ddparity.trace import Event

from ._session import guarded, in_backward

if TYPE_CHECKING:
    from ._session import Session


class Patches:
    """Wraps functions of torch so that a call is noted before and after; arguments and results pass untouched."""

    def __init__(self, session: "Session") -> None:
        self.session = session

    def install(self) -> None:
        """Put the wrappers in place. It happens at the end of ``import torch``, before anybody imports names from it."""
        _around(torch.autograd, "backward", before=lambda *a, **k: self._backward("backward", *a, **k))
        _around(torch.autograd, "grad", before=lambda *a, **k: self._backward("grad", *a, **k))
        for name in ("clip_grad_norm_", "clip_grad_value_"):
            wrapped = _around(clip_grad, name, before=self._before_clip, after=self._after_clip)
            setattr(torch.nn.utils, name, wrapped)
        scaler = torch.amp.GradScaler
        _around(scaler, "unscale_", before=self._before_unscale, after=self._after_unscale)
        _around(scaler, "update", after=self._after_update)
        _around_step(scaler, self)
        _around(torch.optim.Optimizer, "__init__", after=lambda _, self_, *a, **k: self._created(self_))
        _around(torch.optim.Optimizer, "load_state_dict", after=lambda _, o, *a, **k: self._resumed(type(o).__name__))
        _around(torch.nn.Module, "load_state_dict", after=lambda _, m, *a, **k: self._resumed(type(m).__name__))

    @guarded
    def _backward(self, kind: str, tensors: Any, *args: Any, **kwargs: Any) -> None:
        session = self.session
        if in_backward() or not session.recording or not session.may_record() or not session.on_training_thread():
            return
        listed = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        scalar = all(t.numel() == 1 and not t.is_complex() for t in listed)
        value = sum(t.detach().double().item() for t in listed) if scalar else None
        batch = session.batches.current
        dtype = str(listed[0].dtype).removeprefix("torch.") if listed else ""
        session.writer.event(
            Event.BACKWARD,
            step=session.step,
            name=kind,
            value=value,
            batch=batch.number if batch is not None else -1,
            backward=session.backwards + 1,
            dtype=dtype,
        )
        session.backwards += 1
        session.flush()

    @guarded
    def _before_clip(self, parameters: Any, *args: Any, **kwargs: Any) -> None:
        if self.session.recording:
            self.session.gradients.sync(_listed(parameters))

    @guarded
    def _after_clip(self, result: Any, parameters: Any, *args: Any, **kwargs: Any) -> None:
        session = self.session
        if not session.recording or not session.opened:
            return
        limit = args[0] if args else kwargs.get("max_norm", kwargs.get("clip_value"))
        session.gradients.modified()
        local = getattr(result, "_local_tensor", result)
        norm = float(local) if isinstance(local, torch.Tensor) and local.numel() == 1 else None
        session.writer.event(
            Event.CLIP, step=session.step, name="grad_norm", value=norm, max_norm=float(limit) if limit else None
        )

    @guarded
    def _before_unscale(self, scaler: Any, optimizer: torch.optim.Optimizer) -> None:
        if self.session.recording:
            self.session.gradients.sync(p for group in optimizer.param_groups for p in group["params"])

    @guarded
    def _after_unscale(self, result: Any, scaler: Any, optimizer: torch.optim.Optimizer) -> None:
        session = self.session
        if session.recording and session.opened:
            session.gradients.modified()
            session.writer.event(Event.UNSCALE, step=session.step, value=float(scaler.get_scale()))

    @guarded
    def _after_update(self, result: Any, scaler: Any, *args: Any, **kwargs: Any) -> None:
        if self.session.recording and self.session.opened:
            self.session.writer.event(Event.SCALE, step=self.session.step, value=float(scaler.get_scale()))

    @guarded
    def _created(self, optimizer: torch.optim.Optimizer) -> None:
        self.session.optimizers.created(optimizer)

    @guarded
    def _resumed(self, what: str) -> None:
        session = self.session
        if not session.opened or not session.on_training_thread():
            return
        session.writer.event(Event.RESUME, step=session.step, name=what)
        if session.step > 0:
            session.open_window(f"{what}.load_state_dict")

    @guarded
    def step_of_scaler(self, optimizer: torch.optim.Optimizer, steps_before: int | None) -> None:
        """Note that a gradient scaler skipped the optimizer's step."""
        if self.session.opened and self.session.optimizers.num_steps == steps_before:
            self.session.optimizers.skipped(optimizer)


def _around(
    owner: Any,
    name: str,
    *,
    before: Callable[..., None] | None = None,
    after: Callable[..., None] | None = None,
) -> Callable[..., Any]:
    """Wrap ``owner.name``; ``after`` gets the result before the arguments."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return original(*args, **kwargs)
        if before is not None:
            args, kwargs = _keep_iterators(args, kwargs)
            before(*args, **kwargs)
        result = original(*args, **kwargs)
        if after is not None:
            after(result, *args, **kwargs)
        return result

    setattr(owner, name, call)
    return call


def _around_step(scaler: Any, patches: Patches) -> None:
    original = scaler.step

    @functools.wraps(original)
    def step(self: Any, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        before = patches.session.optimizers.num_steps
        result = original(self, optimizer, *args, **kwargs)
        if self.is_enabled():
            patches.step_of_scaler(optimizer, before)
        return result

    scaler.step = step


def _keep_iterators(args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
    """Turn generators into lists, so that looking at ``model.parameters()`` does not use it up."""
    listed = tuple(list(a) if hasattr(a, "__next__") else a for a in args)
    return listed, {k: list(v) if hasattr(v, "__next__") else v for k, v in kwargs.items()}


def _listed(parameters: Any) -> list[torch.Tensor]:
    return [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
