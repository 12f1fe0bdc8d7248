"""Optimizer steps: hyper-parameters, state, parameters afterwards, and when a training step is over."""

import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch.optim import optimizer as torch_optimizer

from ddparity.trace import Event, Site

from ._session import guarded

if TYPE_CHECKING:
    from ._session import Session


class OptimizerWatch:
    """Global optimizer hooks.

    A training step is a round in which all trainable parameters that live optimizers hold have been updated: one
    ``step()`` with one optimizer, several with a GAN's. An optimizer that steps twice before the others have
    stepped at all ends the round too, and those others are left out until they step.
    """

    def __init__(self, session: "Session") -> None:
        self.session = session
        self.num_steps = 0
        self._known: dict[int, weakref.ref[torch.optim.Optimizer]] = {}
        self._dormant: set[int] = set()
        self._stepped: set[int] = set()

    def install(self) -> None:
        """Register the hooks."""
        torch_optimizer.register_optimizer_step_pre_hook(self._before)
        torch_optimizer.register_optimizer_step_post_hook(self._after)

    def created(self, optimizer: torch.optim.Optimizer) -> None:
        """Note an optimizer, so that a round waits for it."""
        self._known[id(optimizer)] = weakref.ref(optimizer)

    def _before(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if not torch.compiler.is_compiling():
            self._on_before(optimizer, _closure(args, kwargs))

    def _after(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if torch.compiler.is_compiling():
            return
        self._on_after(optimizer, _closure(args, kwargs))
        if not self.session.dead and self.session.opened and self.session.should_stop():
            raise SystemExit(0)  # --stop-after-steps

    @guarded
    def _on_before(self, optimizer: torch.optim.Optimizer, closure: Any) -> None:
        session = self.session
        if not session.may_record() or not session.on_training_thread():
            return
        self.created(optimizer)
        self._dormant.discard(id(optimizer))
        if id(optimizer) in self._stepped:
            self._dormant |= {key for key in self._known if key not in self._stepped}
            self._end_round()
        self._name_strangers(optimizer)
        if closure is None:
            session.gradients.sync(_parameters(optimizer))
            session.gradients.before_step(_parameters(optimizer))
        else:
            session.not_recorded("closure", "gradients of all but the last evaluation of an optimizer's closure")
        session.writer.event(
            Event.OPTIMIZER,
            step=session.step,
            name=type(optimizer).__name__,
            groups=[_hyper_parameters(group) for group in optimizer.param_groups],
            params=self._group_names(optimizer) if session.recording else [],
        )

    @guarded
    def _on_after(self, optimizer: torch.optim.Optimizer, closure: Any) -> None:
        session = self.session
        if not session.opened or not session.on_training_thread():
            return
        self.num_steps += 1
        if session.recording:
            if closure is not None:
                session.gradients.sync(_parameters(optimizer))
            self._record_parameters(optimizer)
        self._stepped.add(id(optimizer))
        if self._round_is_over():
            self._end_round()

    @guarded
    def skipped(self, optimizer: torch.optim.Optimizer) -> None:
        """Close the round of a step that a gradient scaler skipped because of infinities."""
        if not self.session.may_record() or not self.session.on_training_thread():
            return
        self.session.writer.event(Event.OPTIMIZER, step=self.session.step, name="skipped", groups=[], params=[])
        self._stepped.add(id(optimizer))
        if self._round_is_over():
            self._end_round()

    def _round_is_over(self) -> bool:
        held: set[int] = set()
        updated: set[int] = set()
        for key, reference in list(self._known.items()):
            optimizer = reference()
            if optimizer is None:
                del self._known[key]
            elif key not in self._dormant:
                mine = {id(p) for p in _parameters(optimizer) if p.requires_grad}
                held |= mine
                if key in self._stepped:
                    updated |= mine
        return held <= updated

    def _end_round(self) -> None:
        self._stepped.clear()
        self.session.end_step()

    def _record_parameters(self, optimizer: torch.optim.Optimizer) -> None:
        session = self.session
        with_state = session.first_of_window or session.last_of_window
        for parameter in _parameters(optimizer):
            name = session.registry.name(parameter) or "?"
            if with_state:
                self._record_state(optimizer.state.get(parameter, {}), name)
            session.gradients.record(parameter.detach(), Site.PARAMETER_AFTER, name, with_hash=True)

    def _record_state(self, state: dict[str, Any], name: str) -> None:
        for key, value in state.items():
            if isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex()):
                self.session.gradients.record(
                    value.detach(), Site.OPTIMIZER_STATE, name, part=str(key), with_hash=True
                )

    def _name_strangers(self, optimizer: torch.optim.Optimizer) -> None:
        """Name parameters that no called module contains."""
        for number, group in enumerate(optimizer.param_groups):
            for index, parameter in enumerate(group["params"]):
                if self.session.registry.name(parameter) is None:
                    self.session.registry.put(parameter, f"{type(optimizer).__name__}.group{number}.{index}")

    def _group_names(self, optimizer: torch.optim.Optimizer) -> list[list[str]]:
        name = self.session.registry.name
        return [[name(p) or "?" for p in group["params"]] for group in optimizer.param_groups]


def _closure(args: Any, kwargs: Any) -> Any:
    """Return the closure that ``step`` was called with; hooks see the optimizer itself as the first argument."""
    given = [a for a in args if callable(a) and not isinstance(a, torch.optim.Optimizer)]
    return kwargs.get("closure") or (given[0] if given else None)


def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _hyper_parameters(group: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in group.items():
        if key == "params":
            continue
        if isinstance(value, torch.Tensor) and value.numel() == 1:
            value = value.item()
        if isinstance(value, (bool, int, float, str, type(None))):
            found[key] = value
        elif isinstance(value, (tuple, list)) and all(isinstance(v, (int, float)) for v in value):
            found[key] = list(value)
    return found
