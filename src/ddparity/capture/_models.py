"""Models that the script calls: what they consist of, their parameters at first sight, their buffers after a step."""

import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from ddparity.trace import Event, Site

from . import _facts
from ._contents import Contents
from ._guard import guarded
from ._identity import IdentityMap
from ._names import is_wrapper, ties, unwrap, walk

if TYPE_CHECKING:
    from ._session import Session

_MAX_MODELS = 64
_WRAP_SETTINGS = ("find_unused_parameters", "static_graph", "gradient_as_bucket_view", "broadcast_buffers")


class _Buffers(NamedTuple):
    """A model's buffers; held, since at the end of the program they may be all that is left of it."""

    top: weakref.ref[nn.Module]
    tensors: list[tuple[str, torch.Tensor]]


class ModelWatch:
    """Looks at a model each time the script calls it, and once a step where nothing is recorded."""

    def __init__(self, session: "Session") -> None:
        self.session = session
        self._num_described = 0
        self._wrapped: IdentityMap[bool] = IdentityMap()
        self._described: IdentityMap[int] = IdentityMap()
        self._recorded: IdentityMap[tuple[str, int]] = IdentityMap()
        self._flags: IdentityMap[tuple[bool, ...]] = IdentityMap()
        self._patterns: IdentityMap[set[tuple[bool, ...]]] = IdentityMap()
        self._looked_at: IdentityMap[bool] = IdentityMap()
        self._started: IdentityMap[int] = IdentityMap()
        self.contents = Contents()
        self._lazy: nn.Module | None = None
        self._unsettled: int | None = None
        self._pending_buffers: tuple[int, list[_Buffers]] | None = None

    def start_over(self) -> None:
        """Forget every model."""
        for known in (self._wrapped, self._described, self._recorded, self._flags, self._patterns, self._looked_at):
            known.clear()
        self._started.clear()
        self.contents.clear()
        self._lazy = self._unsettled = self._pending_buffers = None

    def new_step(self) -> None:
        """Look again at everything."""
        self._looked_at.clear()
        if self.session.recording:
            tops = list(self.session.registry.living_tops())
            held = [_Buffers(weakref.ref(top), list(top.named_buffers())) for top in tops]
            self._pending_buffers = (self.session.step - 1, held)
            self._unsettled = self.session.step - 1

    def called(self, module: nn.Module) -> None:
        """Look at the model behind a module that the script calls."""
        session = self.session
        if session.registry.name(module) is None:
            if session.step == 0 and session.opened and session.registry.all_gone:
                session.start_over(module)
            self.describe(session.registry.learn(module))
        if is_wrapper(module) and module not in self._wrapped:
            self._wrapped.put(module, True)
            self._describe_wrapper(module)
        self.buffers_of_last_step()
        top = session.registry.top_of(unwrap(module))
        if session.recording or top not in self._looked_at:
            self._looked_at.put(top, True)
            self._parameters(top)
        if session.recording and session.once(f"random {session.step}"):
            states: dict[str, Any] = {**_facts.random_states()}
            session.writer.event(Event.RNG, step=session.step, **states)

    def watch_gathered(self, module: nn.Module) -> None:
        """Watch parameters that a module has only while it runs: ``fully_shard`` gathers them for it."""
        session = self.session
        owner = session.registry.name(module)
        for key, parameter in module._parameters.items():
            if parameter is None or not parameter.requires_grad or session.registry.name(parameter) is not None:
                continue
            if owner is not None and not is_lazy(parameter):
                is_top = session.registry.top_of(module) is module
                session.registry.put(parameter, key if is_top and "." not in owner else f"{owner}.{key}")
                session.gradients.attach([parameter])

    def after_call(self) -> None:
        """Look at the parameters that a lazy module has made in its first call."""
        if self._lazy is not None:
            top, self._lazy = self._lazy, None
            self.session.registry.refresh()
            self._parameters(top)

    # -- description --------------------------------------------------------------------------------------------------

    def describe(self, top: nn.Module | None) -> None:
        """Write down what a new model consists of."""
        if top is None:
            return
        session = self.session
        self._num_described += 1
        if self._num_described > _MAX_MODELS:
            session.not_recorded("models", f"what models after the first {_MAX_MODELS} consist of")
            return
        self._described.put(top, len(list(top.parameters())))
        name = session.registry.name
        session.writer.event(
            Event.MODEL,
            step=session.step,
            name=name(top) or "",
            parameters={name(p) or n: p.requires_grad for n, p in top.named_parameters()},
            modules={name(m) or n: type(m).__name__ for n, m in walk(top) if not is_wrapper(m)},
            ties=ties(top),
        )

    def _describe_wrapper(self, module: nn.Module) -> None:
        from ._forward import COMPILED

        session = self.session
        settings = {key: getattr(module, key) for key in _WRAP_SETTINGS if isinstance(getattr(module, key, None), int)}
        group: Any = getattr(module, "process_group", None)
        if group is not None and hasattr(group, "size"):
            settings["group_size"] = group.size()
        root = session.registry.name(module) or ""
        session.writer.event(Event.WRAP, step=session.step, name=type(module).__name__, root=root, **settings)
        if type(module).__name__ == "FullyShardedDataParallel" and session.world_size > 1:
            session.gradients.unplaced |= session.gradients.flat.learn(module, session.registry)
        if type(module).__name__ == "OptimizedModule":
            session.not_recorded(root, COMPILED)

    # -- parameters ---------------------------------------------------------------------------------------------------

    def _parameters(self, top: nn.Module) -> None:
        """Record parameters not seen before, watch their gradients, notice what was frozen or unfrozen."""
        parameters = list(top.parameters())
        if self._described.get(top) not in (None, len(parameters)):  # it was called before it was complete
            self.session.registry.refresh()
            self.describe(top)
        self._notice_freezing(top, parameters)
        if not self.session.recording:
            return
        for parameter in parameters:
            if is_lazy(parameter):
                self._lazy = top
            elif not isinstance(parameter, nn.Parameter):
                name = self.session.registry.name(parameter) or "parameters"
                self.session.not_recorded(name, "a tensor in the parameter's place, as by torch.func.functional_call")
            else:
                self.first_sight(parameter)
        self.session.gradients.attach(p for p in parameters if p in self._recorded)
        self._buffers_at_start(top)

    def first_sight(self, parameter: torch.Tensor) -> None:
        """Record a parameter as it is before its first update, or its first in a window that opens later."""
        session = self.session
        name = session.registry.name(parameter)
        if name is None:
            session.registry.refresh()
            name = session.registry.name(parameter) or "?"
        if self._recorded.get(parameter) == (name, session.window):
            return
        session.pieces.declared(parameter, name)
        if session.gradients.record(parameter.detach(), Site.PARAMETER, name, with_hash=True):
            self._recorded.put(parameter, (name, session.window))
            self.contents.keep(parameter)

    # -- what changed between two steps -------------------------------------------------------------------------------

    @guarded
    def settle(self, *, ends: bool = False) -> None:
        """Record the parameters that something has changed since the optimizer's last step, as the step left them.

        Weights may be clipped, averaged over the ranks, copied to a teacher or loaded between two steps. That is over
        when training goes on: an evaluation may be given other weights for a while. ``ends`` says that it does not
        go on, so that what is found may be more than the step left.
        """
        step, self._unsettled = self._unsettled, None
        if step is None:
            return
        session, changed = self.session, list[str]()
        for parameter in self._recorded.things():
            if self.contents.changed(parameter):
                name = session.registry.name(parameter) or "?"
                changed.append(name)
                session.gradients.record(parameter.detach(), Site.PARAMETER_LEFT, name, with_hash=True, step=step)
                self.contents.keep(parameter)
        if not ends:
            session.writer.event(Event.SETTLED, step=step, changed=changed)

    def _notice_freezing(self, top: nn.Module, parameters: list[nn.Parameter]) -> None:
        session = self.session
        flags = tuple(p.requires_grad for p in parameters)
        before = self._flags.get(top)
        if before == flags:
            return
        self._flags.put(top, flags)
        patterns = self._patterns.get(top) or set()
        news = flags not in patterns  # a GAN that freezes its discriminator in every step would never close the window
        patterns.add(flags)
        self._patterns.put(top, patterns)
        if before is None or len(before) != len(flags):
            return
        pairs = zip(parameters, before, flags, strict=True)
        changed = [(session.registry.name(p) or "?", now) for p, was, now in pairs if was != now]
        session.writer.event(
            Event.REQUIRES_GRAD,
            step=session.step,
            changed=[name for name, _ in changed],
            frozen=[name for name, now in changed if not now],
            unfrozen=[name for name, now in changed if now],
        )
        if news:
            session.open_window("requires_grad changed")

    # -- buffers ------------------------------------------------------------------------------------------------------

    def _buffers_at_start(self, top: nn.Module) -> None:
        """Record a model's buffers before the first step that it takes part in, of every window."""
        session = self.session
        if self._started.get(top) == session.window:
            return
        self._started.put(top, session.window)
        for name, buffer in top.named_buffers():
            name = session.registry.name(buffer) or name
            session.gradients.record(buffer.detach(), Site.BUFFER_AT_START, name, with_hash=True)

    @guarded
    def buffers_of_last_step(self) -> None:
        """Record buffers as the step before left them, before a wrapper broadcasts them."""
        pending, self._pending_buffers = self._pending_buffers, None
        if pending is None:
            return
        step, held = pending
        session, seen = self.session, set()
        session.registry.refresh()
        for buffers in held:
            top = buffers.top()
            for name, buffer in buffers.tensors if top is None else top.named_buffers():
                if id(buffer) not in seen:
                    seen.add(id(buffer))
                    name = session.registry.name(buffer) or name
                    session.gradients.record(buffer.detach(), Site.BUFFER, name, with_hash=True, step=step)
