"""Forward calls: which root module was called with which samples, what every module returned, and its gradient."""

import sys
import weakref
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.modules import module as hooks

from ddparity.digest import digest_tensor
from ddparity.trace import FLAG_GRAD, FLAG_RANDOM, FLAG_TRAINING, Event, Site

from . import _facts
from ._batch import Batch, is_plain, named_tensors
from ._names import is_wrapper, ties, unwrap
from ._session import guarded, in_backward

if TYPE_CHECKING:
    from ._session import Session

_MAX_PARTS = 16


class ForwardWatch:
    """Global module hooks. In a window every call is followed; outside it only calls of root modules are noticed."""

    def __init__(self, session: "Session") -> None:
        self.session = session
        self._handles: list[Any] = []
        self._stack: list[tuple[nn.Module, torch.Tensor | None]] = []
        self._batch: Batch | None = None
        self._active = False
        self._occurrences: dict[tuple[str, int], int] = defaultdict(int)
        self._seen: dict[int, tuple[weakref.ref, int]] = {}
        self._pending_buffers: int | None = None
        self._requires_grad: dict[int, tuple[bool, ...]] = {}
        self._known_parameters: set[int] = set()

    @property
    def installed(self) -> bool:
        """Whether hooks are in place."""
        return bool(self._handles)

    def install(self, *, detailed: bool) -> None:
        """Put the hooks of an open window (``detailed``) or of a closed one in place of those that are there."""
        for handle in self._handles:
            handle.remove()
        self._stack.clear()
        self._active = False
        if detailed:
            self._handles = [
                hooks.register_module_forward_pre_hook(self._on_enter),
                hooks.register_module_forward_hook(self._on_leave, always_call=True),
            ]
        else:
            self._handles = [hooks.register_module_forward_pre_hook(self._on_enter_closed)]

    def new_step(self) -> None:
        """Start counting calls anew."""
        if self.session.recording:
            self._pending_buffers = self.session.step - 1
        self._occurrences.clear()
        self._seen.clear()

    # -- hooks ------------------------------------------------------------------------------------------------------

    def _on_enter(self, module: nn.Module, args: Any) -> None:
        if torch.compiler.is_compiling() or in_backward():
            return
        self._enter(module, args)

    def _on_leave(self, module: nn.Module, args: Any, output: Any) -> None:
        if torch.compiler.is_compiling() or in_backward():
            return
        self._leave(module, output)

    def _on_enter_closed(self, module: nn.Module, args: Any) -> None:
        if torch.compiler.is_compiling() or in_backward():
            return
        self._enter_closed(module, args)

    @guarded
    def _enter(self, module: nn.Module, args: Any) -> None:
        if not self.session.on_training_thread():
            return
        if not self._stack:
            self._enter_root(module, *_arguments(args))
        watch_random = self._active and self.session.detailed
        self._stack.append((module, torch.get_rng_state() if watch_random else None))

    @guarded
    def _leave(self, module: nn.Module, output: Any) -> None:
        if not self.session.on_training_thread():
            return
        random_before = None
        while self._stack:
            entered, random_before = self._stack.pop()
            if entered is module:
                break
        else:
            return
        if self._active and self.session.detailed and output is not None:
            self._record_output(module, output, random_before)
        if not self._stack:
            if self._batch is not None and output is not None:
                for _, tensor in named_tensors(output):
                    if is_plain(tensor):
                        self.session.batches.came_from(tensor, self._batch)
            self._active = False

    @guarded
    def _enter_closed(self, module: nn.Module, args: Any) -> None:
        if not self.session.on_training_thread() or not self._is_root(module):
            return
        self._enter_root(module, *_arguments(args))
        if self.session.recording:  # the window has just opened by itself: this root's post-hook will come
            self._stack.append((module, None))

    def _is_root(self, module: nn.Module) -> bool:
        registry = self.session.registry
        return is_wrapper(module) or registry.name(module) is None or any(top is module for top in registry.living_tops())

    # -- root calls -------------------------------------------------------------------------------------------------

    def _enter_root(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        session = self.session
        if not session.may_record():
            return
        if session.registry.name(module) is None:
            top = session.registry.learn(module)
            if top is not None:
                self._describe(top)
        if is_wrapper(module) and session.once(f"wrapper {id(module)}"):
            self._describe_wrapper(module)
        self.buffers_of_last_step()
        self._parameters(unwrap(module))
        if session.recording and session.once(f"random {session.step}"):
            session.writer.event(Event.RNG, step=session.step, **_facts.random_states())
        batch, new = session.batches.enter(args, kwargs)
        self._batch = batch
        if batch is not None and new:
            self._record_samples(module, batch)
        self._active = session.recording and torch.is_grad_enabled()
        if session.recording and not torch.is_grad_enabled() and module.training:
            session.not_recorded(session.registry.name(module) or "", "called without gradients")

    def _record_samples(self, module: nn.Module, batch: Batch) -> None:
        session = self.session
        name = session.registry.name(module) or ""
        if name not in session.writer.facts.batch_shapes:
            session.writer.facts.batch_shapes[name] = [batch.size]
        training = module.training and torch.is_grad_enabled()
        session.writer.samples(
            step=session.step, batch=batch.number, root=name, training=training, ids=batch.keys.ids
        )

    def _describe(self, top: nn.Module) -> None:
        session = self.session
        name = session.registry.name
        session.writer.event(
            Event.MODEL,
            step=session.step,
            name=name(top) or "",
            parameters={name(p) or n: p.requires_grad for n, p in top.named_parameters()},
            modules={name(m) or n: type(m).__name__ for n, m in top.named_modules()},
            ties=ties(top),
        )

    def _describe_wrapper(self, module: nn.Module) -> None:
        settings = {
            key: getattr(module, key)
            for key in ("find_unused_parameters", "static_graph", "gradient_as_bucket_view", "broadcast_buffers")
            if isinstance(getattr(module, key, None), (bool, int))
        }
        group = getattr(module, "process_group", None)
        if group is not None and hasattr(group, "size"):
            settings["group_size"] = group.size()
        session = self.session
        session.writer.event(
            Event.WRAP,
            step=session.step,
            name=type(module).__name__,
            root=session.registry.name(module) or "",
            **settings,
        )

    def _parameters(self, top: nn.Module) -> None:
        """Record parameters not seen before, watch their gradients, notice what was frozen or unfrozen."""
        session = self.session
        parameters = list(top.parameters())
        flags = tuple(p.requires_grad for p in parameters)
        before = self._requires_grad.get(id(top))
        self._requires_grad[id(top)] = flags
        if before is not None and before != flags and len(before) == len(flags):
            changed = [p for p, was, now in zip(parameters, before, flags, strict=True) if was != now]
            names = [session.registry.name(p) or "?" for p in changed]
            session.writer.event(Event.REQUIRES_GRAD, step=session.step, changed=names)
            session.open_window("requires_grad changed")
        if not session.recording:
            return
        for parameter in parameters:
            if id(parameter) not in self._known_parameters:
                self._known_parameters.add(id(parameter))
                name = session.registry.name(parameter)
                if name is None:
                    session.registry.learn(top)
                    name = session.registry.name(parameter) or "?"
                session.gradients.record(parameter.detach(), Site.PARAMETER, name, with_hash=True)
        session.gradients.attach(parameters)

    @guarded
    def buffers_of_last_step(self) -> None:
        """Record buffers as the step before left them, before a wrapper broadcasts them."""
        step, self._pending_buffers = self._pending_buffers, None
        if step is None:
            return
        session = self.session
        for top in session.registry.living_tops():
            for _, buffer in top.named_buffers():
                name = session.registry.name(buffer)
                if name is None:
                    session.registry.learn(top)
                    name = session.registry.name(buffer) or "?"
                session.gradients.record(buffer, Site.BUFFER, name, with_hash=True, step=step)

    # -- outputs ----------------------------------------------------------------------------------------------------

    def _record_output(self, module: nn.Module, output: Any, random_before: torch.Tensor | None) -> None:
        if is_wrapper(module):
            return
        session = self.session
        name = session.registry.name(module)
        if name is None:  # made during the forward, or hidden from named_modules
            name = type(module).__name__
        flags = FLAG_GRAD | (FLAG_TRAINING if module.training else 0)
        if random_before is not None and not torch.equal(random_before, torch.get_rng_state()):
            flags |= FLAG_RANDOM
        number = self._batch.number if self._batch is not None else -1
        occurrence = self._occurrences[name, number]
        self._occurrences[name, number] += 1
        for count, (part, tensor) in enumerate(named_tensors(output)):
            if count >= _MAX_PARTS:
                session.not_recorded(name, f"more than {_MAX_PARTS} output tensors")
                return
            if is_plain(tensor) and (tensor.is_floating_point() or tensor.is_complex()) and self._is_new(tensor):
                self.record_activation(tensor, name, part, type(module).__name__, occurrence, flags)

    def _is_new(self, tensor: torch.Tensor) -> bool:
        """Whether no submodule has just returned this very tensor."""
        entry = self._seen.get(id(tensor))
        if entry is not None and entry[0]() is tensor and entry[1] == tensor._version:
            return False
        self._seen[id(tensor)] = (weakref.ref(tensor), tensor._version)
        return True

    def record_activation(
        self, tensor: torch.Tensor, name: str, part: str, module: str, occurrence: int, flags: int
    ) -> None:
        """Digest an activation by sample where its rows belong to samples, and watch its gradient."""
        batch = self._batch
        rows = batch.rows_a_sample(tuple(tensor.shape)) if batch is not None else 0
        where = {
            "name": name,
            "part": part,
            "module": module,
            "batch": batch.number if batch is not None else -1,
            "occurrence": occurrence,
            "rows": rows,
            "flags": flags,
        }
        keys = batch.keys if batch is not None and rows else None
        self._write(tensor, Site.ACTIVATION, keys, where)
        if tensor.requires_grad:
            step = self.session.step

            def on_gradient(gradient: torch.Tensor) -> None:
                if self.session.step == step:
                    self._gradient(gradient, keys, where)

            tensor.register_hook(on_gradient)

    @guarded
    def _gradient(self, gradient: torch.Tensor, keys: Any, where: dict[str, Any]) -> None:
        if self.session.recording and is_plain(gradient):
            self._write(gradient, Site.ACTIVATION_GRADIENT, keys, {**where, "backward": self.session.backwards})

    def _write(self, tensor: torch.Tensor, site: Site, keys: Any, where: dict[str, Any]) -> None:
        turned = tensor.transpose(0, 1) if where["rows"] < 0 else tensor
        digest = digest_tensor(turned.detach(), row_keys=keys)
        self.session.writer.digest(digest, site=site, step=self.session.step, **where)

    def mark(self, name: str, tensor: torch.Tensor) -> None:
        """Record a tensor that the script names itself (``ddparity.mark``)."""
        if self.session.recording and is_plain(tensor) and not in_backward():
            if self._batch is None:
                self._batch = self.session.batches.current
            number = self._batch.number if self._batch is not None else -1
            occurrence = self._occurrences[f"mark:{name}", number]
            self._occurrences[f"mark:{name}", number] += 1
            self.record_activation(tensor, name, "", "mark", occurrence, FLAG_GRAD | FLAG_TRAINING)


def _arguments(args: Any) -> tuple[Any, Any]:
    """Return what a root module is called with, keyword arguments included.

    Global pre-hooks are not given keyword arguments, and a hook on the module itself would be pickled and copied
    with it; so they are read from the frame of ``Module._call_impl`` that calls the hook.
    """
    frame = sys._getframe(1)
    for _ in range(6):
        if frame is None:
            break
        if frame.f_code.co_filename == hooks.__file__ and "kwargs" in frame.f_locals:
            return args, frame.f_locals["kwargs"]
        frame = frame.f_back
    return args, {}
