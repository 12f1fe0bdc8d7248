"""What torch has no hook for: the loss that backward is called on, clipping, loss scaling, loading of state."""

import functools
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.utils import clip_grad

from ddparity.trace import Event
from ddparity.trace._ring_format import Kind

from ._around import around
from ._guard import guarded, hidden, in_backward, is_plain
from ._placement import own_value

if TYPE_CHECKING:
    from ._session import Session


class Patches:
    """Wraps functions of torch so that a call is noted before and after; arguments and results pass untouched."""

    def __init__(self, session: "Session") -> None:
        self.session = session

    def install(self) -> None:
        """Put the wrappers in place, at the end of ``import torch`` and before anybody imports names from it."""
        # Both torch.autograd.backward and torch.autograd.grad end here, from wherever somebody has imported them.
        around(torch.autograd, "_engine_run_backward", before=self._backward, after=self._after_backward)
        for name in ("clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_"):
            self._patch_clip(name)
        scaler = torch.amp.GradScaler
        around(scaler, "unscale_", before=self._before_unscale, after=self._after_unscale)
        around(scaler, "update", after=self._after_update)
        _around_step(scaler, self)
        around(torch.optim.Optimizer, "__init__", after=lambda _, self_, *a, **k: self._created(self_))
        around(torch.optim.Optimizer, "load_state_dict", after=lambda _, o, *a, **k: self._resumed(type(o).__name__))
        around(torch.nn.Module, "load_state_dict", after=lambda _, m, *a, **k: self._resumed(type(m).__name__))
        around(torch.nn.Module, "compile", after=lambda _, m, *a, **k: self._compiled(m))

    def _patch_clip(self, name: str) -> None:
        wrapped = around(torch.nn.utils, name, before=self._before_clip, after=self._after_clip, keep="parameters")
        if wrapped is not None and hasattr(clip_grad, name):
            setattr(clip_grad, name, wrapped)

    @guarded
    def _backward(self, roots: Any, *args: Any, accumulate_grad: bool = False, **kwargs: Any) -> None:
        session = self.session
        if not in_backward() and session.on_training_thread():
            session.comm.begins(Kind.BACKWARD)
            session.memory.at("before_backward")
        if in_backward() or not session.recording or not session.may_record() or not session.on_training_thread():
            return
        if (reason := hidden()) is not None:
            session.not_recorded("backward", reason)
            return
        tensors = [t for t in roots if isinstance(t, torch.Tensor)]
        made = [batch for t in tensors if (batch := session.batches.maker(t)) is not None]
        batch = made[0] if made else session.batches.current
        session.writer.event(
            Event.BACKWARD,
            step=session.step,
            name="backward" if accumulate_grad else "grad",
            value=_value(tensors) if len(tensors) == len(roots) else None,
            batch=batch.number if batch is not None else -1,
            backward=session.backwards + 1,
            dtype=str(tensors[0].dtype).removeprefix("torch.") if tensors else "",
            shape=list(tensors[0].shape) if tensors and not tensors[0].is_nested else [],
        )
        session.backwards += 1
        session.flush()

    @guarded
    def _after_backward(self, result: Any, *args: Any, **kwargs: Any) -> None:
        if not in_backward():
            self.session.comm.ends(Kind.BACKWARD)
            self.session.memory.at("backward")

    @guarded
    def _before_clip(self, parameters: Any, *args: Any, **kwargs: Any) -> None:
        if self._may_read():
            self.session.gradients.sync([parameters] if isinstance(parameters, torch.Tensor) else parameters)

    @guarded
    def _after_clip(self, result: Any, parameters: Any, *args: Any, **kwargs: Any) -> None:
        session = self.session
        if not session.opened or not self._may_read():
            return
        session.gradients.modified()
        limit = args[0] if args else kwargs.get("max_norm", kwargs.get("clip_value"))
        norm = result if result is not None else kwargs.get("total_norm", args[1] if len(args) > 1 else None)
        session.writer.event(
            Event.CLIP,
            step=session.step,
            name="grad_norm",
            value=_value([norm]) if isinstance(norm, torch.Tensor) else None,
            max_norm=float(limit) if limit is not None else None,
        )

    @guarded
    def _before_unscale(self, scaler: Any, optimizer: torch.optim.Optimizer) -> None:
        if scaler.is_enabled() and self._may_read():
            self.session.gradients.sync(p for group in optimizer.param_groups for p in group["params"])

    @guarded
    def _after_unscale(self, result: Any, scaler: Any, optimizer: torch.optim.Optimizer) -> None:
        session = self.session
        if scaler.is_enabled() and session.opened and self._may_read():
            session.gradients.modified()
            session.writer.event(Event.UNSCALE, step=session.step, value=float(scaler.get_scale()))

    @guarded
    def _after_update(self, result: Any, scaler: Any, *args: Any, **kwargs: Any) -> None:
        if scaler.is_enabled() and self.session.opened and self._may_read():
            self.session.writer.event(Event.SCALE, step=self.session.step, value=float(scaler.get_scale()))

    @guarded
    def _created(self, optimizer: torch.optim.Optimizer) -> None:
        session = self.session
        session.optimizers.created(optimizer)
        session.frameworks.look()
        if session.opened and session.step > 0 and session.on_training_thread():
            # As after a resume. A checkpoint that only some ranks load must not leave the others unrecorded.
            session.open_window(f"new {type(optimizer).__name__}")

    @guarded
    def _resumed(self, what: str) -> None:
        session = self.session
        if not session.opened or not session.on_training_thread():
            return
        session.writer.event(Event.RESUME, step=session.step, name=what)
        if session.step > 0:
            session.open_window(f"{what}.load_state_dict")

    @guarded
    def _compiled(self, module: torch.nn.Module) -> None:
        """Notice calls of a module that ``Module.compile`` has compiled in place: its hooks run inside the region."""
        compiled = getattr(module, "_compiled_call_impl", None)
        if compiled is None:
            return
        watch = self.session.forward

        @functools.wraps(compiled, updated=())
        def call(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return compiled(*args, **kwargs)
            watch.enter_compiled(module, args, kwargs)
            result = None
            try:
                result = compiled(*args, **kwargs)
            finally:
                watch.leave_compiled(module, args, result)
            return result

        module._compiled_call_impl = call

    @guarded
    def step_of_scaler(self, optimizer: torch.optim.Optimizer, steps_before: int | None) -> None:
        """Note that a gradient scaler skipped the optimizer's step."""
        if self.session.opened and self.session.optimizers.num_steps == steps_before:
            self.session.optimizers.skipped(optimizer)

    def _may_read(self) -> bool:
        session = self.session
        return session.recording and session.may_record() and session.on_training_thread() and hidden() is None


def _value(tensors: list[torch.Tensor]) -> float | None:
    """Return the sum of one-element tensors as this rank knows it; None if they are not, or only a part is here."""
    known = [own_value(t.detach()) for t in tensors]
    if not known or any(t is None or not is_plain(t) or t.numel() != 1 or t.is_complex() for t in known):
        return None
    return sum(t.double().item() for t in known if t is not None)


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
