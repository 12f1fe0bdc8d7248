"""Optimizer steps: hyper-parameters, gradients, state, parameters afterwards."""

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer
from torch.optim import optimizer as torch_optimizer

from ddparity.trace import Event, Site
from ddparity.trace._ring_format import Kind

from ._closure import Closure, closure_of, replace_closure
from ._guard import guarded, hidden, in_backward, is_plain
from ._rounds import Rounds

if TYPE_CHECKING:
    from ._session import Session

_MAX_FRAMES = 200


class OptimizerWatch:
    """Global optimizer hooks; ``rounds`` decides when a training step is over."""

    def __init__(self, session: "Session") -> None:
        self.session = session
        self.num_steps = 0
        self._rounds = Rounds()
        self._running: list[Optimizer] = []
        self._handles: list[Any] = []
        self._successors: list[torch.Tensor] = []

    def install(self) -> None:
        """Register the hooks."""
        self._handles = [
            torch_optimizer.register_optimizer_step_pre_hook(self._before),
            torch_optimizer.register_optimizer_step_post_hook(self._after),
        ]

    def uninstall(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def created(self, optimizer: Optimizer) -> None:
        """Note an optimizer, so that a training step waits for it, and watch the gradients it will use."""
        self._rounds.created(optimizer)
        session = self.session
        if session.recording and session.may_record():
            session.gradients.attach(parameters_of(optimizer))

    def ends_round(self, module: nn.Module) -> bool:
        """Close the training step if a model that it has updated already begins to compute gradients anew.

        So it is where one optimizer steps several times before another one does, as a GAN's critic.
        """
        over = self._rounds.is_over_for(module.parameters())
        if over:
            self._end_round()
        return over

    # -- hooks --------------------------------------------------------------------------------------------------------

    def _before(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return None
        closure = closure_of(args, kwargs)
        watched = None if closure is None else Closure(closure, lambda count: self._after_closure(optimizer, count))
        if not self._on_before(optimizer, with_closure=closure is not None) or watched is None:
            return None
        return replace_closure(args, kwargs, watched)

    def _after(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if torch.compiler.is_compiling():
            return
        self._on_after(optimizer)
        if not self.session.dead and self.session.opened and self.session.should_stop() and not self._running:
            raise SystemExit(0)  # --stop-after-steps

    @guarded
    def _on_before(self, optimizer: Optimizer, *, with_closure: bool) -> bool:
        """Return whether this step is one to record, and not a step inside another optimizer's."""
        session = self.session
        if not session.may_record() or not self._here():
            return False
        self._running = [other for other in self._running if _num_running(other) > (other is optimizer)]
        self._running.append(optimizer)
        if len(self._running) > 1:
            return False
        if self._rounds.before(optimizer):
            self._end_round()
        session.comm.reading(parameters_of(optimizer))
        session.comm.begins(Kind.OPTIMIZER)
        session.memory.at("before_optimizer")
        session.memory.categories(optimizer, after=False)
        self._look_at(optimizer)
        if not with_closure:
            self._given(optimizer)
        session.writer.event(
            Event.OPTIMIZER,
            step=session.step,
            name=type(optimizer).__name__,
            groups=[_hyper_parameters(group) for group in optimizer.param_groups],
            params=self._group_names(optimizer) if session.recording else [],
            counted=self._counted(optimizer) if session.recording else {},
        )
        return True

    @guarded
    def _after_closure(self, optimizer: Optimizer, count: int) -> None:
        session = self.session
        if count == 1:
            self._given(optimizer)
        elif session.recording:
            session.not_recorded("closure", "gradients of all but the first evaluation of an optimizer's closure")

    @guarded
    def _on_after(self, optimizer: Optimizer) -> None:
        session = self.session
        if not session.opened or not self._here() or not any(other is optimizer for other in self._running):
            return
        while self._running.pop() is not optimizer:
            continue
        if self._running:  # a step inside another optimizer's, such as that of a sharding wrapper
            if all(other is not optimizer for other in self._running):
                self._rounds.inner(optimizer)
            return
        self.num_steps += 1
        session.comm.ends(Kind.OPTIMIZER)
        session.memory.at("optimizer")
        session.memory.categories(optimizer, after=True)
        if session.recording:
            self._record_parameters(optimizer)
        if self._rounds.after(optimizer):
            self._end_round()

    @guarded
    def skipped(self, optimizer: Optimizer) -> None:
        """Close the round of a step that a gradient scaler skipped because of infinities."""
        if not self.session.may_record() or not self.session.on_training_thread():
            return
        self.session.writer.event(Event.OPTIMIZER, step=self.session.step, name="skipped", groups=[], params=[])
        if self._rounds.after(optimizer):
            self._end_round()

    # -- what is recorded ---------------------------------------------------------------------------------------------

    def _here(self) -> bool:
        """Whether this is a step of the training: in its thread, or inside backward, which has threads of its own."""
        return in_backward() or self.session.claim_thread() or self.session.on_training_thread()

    def _end_round(self) -> None:
        self._rounds.begin()
        self.session.end_step()

    def _given(self, optimizer: Optimizer) -> None:
        session = self.session
        if hidden() is not None:
            return
        if session.recording and session.detailed and not session.forward.called:
            session.not_recorded("activations", "no module was called where hooks see it (compiled, or functional)")
        self._successors = self._find_successors(optimizer) if session.recording else []
        session.gradients.sync([*parameters_of(optimizer), *self._successors])
        session.gradients.before_step(parameters_of(optimizer))

    def _find_successors(self, optimizer: Optimizer) -> list[torch.Tensor]:
        """Return the model's own parameters where the optimizer holds others in their place, which get no gradient."""
        name = self.session.registry.name
        held = {name(p): p for p in parameters_of(optimizer) if p.requires_grad and p.grad is None}
        tops = self.session.registry.living_tops() if held else ()
        return [p for top in tops for p in top.parameters() if p.grad is not None and held.get(name(p), p) is not p]

    def _record_parameters(self, optimizer: Optimizer) -> None:
        session = self.session
        if (reason := hidden()) is not None:
            session.not_recorded("parameters after the step", reason)
            return
        with_state = session.first_of_window or session.last_of_window
        for parameter in parameters_of(optimizer):
            name = session.registry.name(parameter) or "?"
            if with_state:
                self._record_state(optimizer.state.get(parameter, {}), name)
            session.gradients.record(parameter.detach(), Site.PARAMETER_AFTER, name, with_hash=True)
            session.forward.models.contents.keep(parameter)
        for parameter in self._successors:
            name = session.registry.name(parameter) or "?"
            session.gradients.record(parameter.detach(), Site.PARAMETER_AFTER, name, with_hash=True)
        self._successors = []

    def _record_state(self, state: dict[str, Any], name: str) -> None:
        for key, value in state.items():
            if isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex()):
                self.session.gradients.record(value.detach(), Site.OPTIMIZER_STATE, name, part=key, with_hash=True)

    def name_stranger(self, parameter: torch.Tensor) -> str:
        """Name a parameter of a model that was never seen to be called, or of no model at all."""
        registry = self.session.registry
        registry.refresh()
        if registry.name(parameter) is None:
            self.session.forward.models.describe(registry.learn_owner(parameter))
        if registry.name(parameter) is None:
            registry.put(parameter, self._place_of(parameter))
        return registry.name(parameter) or "?"

    def _place_of(self, parameter: torch.Tensor) -> str:
        for label, optimizer in self._rounds.labelled():
            for number, group in enumerate(optimizer.param_groups):
                for index, held in enumerate(group["params"]):
                    if held is parameter:
                        return f"{label}.group{number}.{index}"
        return "?"

    def _look_at(self, optimizer: Optimizer) -> None:
        """Name what no called module contains, and record it before its first update."""
        session = self.session
        for parameter in parameters_of(optimizer):
            if session.registry.name(parameter) is None:
                self.name_stranger(parameter)
        if session.recording and hidden() is None:
            for parameter in parameters_of(optimizer):
                if not is_lazy(parameter):
                    session.forward.models.first_sight(parameter)
            session.gradients.attach(parameters_of(optimizer))

    def _counted(self, optimizer: Optimizer) -> dict[int, str]:
        """Return how many steps the optimizer has counted so far, each number with the first parameter it is of."""
        found: dict[int, str] = {}
        for parameter in parameters_of(optimizer):
            count = _count(optimizer.state.get(parameter, {}).get("step"))
            if count is not None and count not in found:
                found[count] = self.session.registry.name(parameter) or "?"
        return found

    def _group_names(self, optimizer: Optimizer) -> list[list[str]]:
        name = self.session.registry.name
        return [[name(p) or "?" for p in group["params"]] for group in optimizer.param_groups]


def parameters_of(optimizer: Optimizer) -> list[torch.Tensor]:
    """Return all that an optimizer updates."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _num_running(optimizer: Optimizer) -> int:
    """Return how many steps of ``optimizer`` are on the stack: one that raised has left without a post hook."""
    frame, found = sys._getframe(1), 0
    for _ in range(_MAX_FRAMES):
        if frame is None:
            break
        code = frame.f_code
        if code.co_filename == torch_optimizer.__file__ and code.co_name == "wrapper":
            found += frame.f_locals.get("self") is optimizer
        frame = frame.f_back
    return found


def _count(step: Any) -> int | None:
    """Return an optimizer's count of steps; None where there is none, or reading it would wait for a device."""
    if isinstance(step, torch.Tensor):
        return int(step) if step.device.type == "cpu" and step.numel() == 1 and is_plain(step) else None
    return int(step) if isinstance(step, (int, float)) else None


def _hyper_parameters(group: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in group.items():
        if key == "params":
            continue
        if isinstance(value, torch.Tensor) and value.numel() == 1 and value.device.type != "meta":
            value = value.item()
        if isinstance(value, np.generic):
            value = value.item()
        if isinstance(value, (bool, int, float, str, type(None))):
            found[key] = value
        elif isinstance(value, Iterable) and not isinstance(value, torch.Tensor):
            listed = list(value)
            if all(isinstance(v, (int, float)) for v in listed):
                found[key] = listed
    return found
