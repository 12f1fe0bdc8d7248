"""Forward calls: which module the script called, with which samples, and what is inside that call."""

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn
from torch.nn.modules import module as hooks

from ddparity.trace._ring_format import Kind

from ._batch import Batch, named_tensors
from ._callers import CHECKPOINT, LOADER, called_from, keywords
from ._guard import guarded, hidden, in_backward, is_plain
from ._identity import IdentityMap
from ._models import ModelWatch
from ._outputs import OutputWatch, generator_states
from ._placement import own_rows

if TYPE_CHECKING:
    from ._session import Session

COMPILED = "compiled: activations inside the region, and their gradients"
"""Why a compiled module's activations are not recorded."""


class Call(NamedTuple):
    """A call that has not returned yet.

    ``generators`` are their states since when what is drawn counts as the call's: since the call before it ended, in
    the same forward, so that a mask which a model draws between its modules belongs to the module it is put on.
    """

    module: nn.Module
    generators: Any


class ForwardWatch:
    """Two global module hooks, installed once: a compiled region looks the same before, in and after a window.

    Where tensors are recorded every call is followed; elsewhere only calls that the script itself makes.
    """

    def __init__(self, session: "Session") -> None:
        self.session = session
        self.models = ModelWatch(session)
        self.outputs = OutputWatch(session)
        self._handles: list[Any] = []
        self._stack: list[Call] = []
        self._active = False
        self._trained = self._training = False
        self._critics: IdentityMap[bool] = IdentityMap()
        self._left: Any = None
        self.called = False

    def install(self) -> None:
        """Put the hooks in place, and hide them from the warning that compiled modules give about others' hooks."""
        self._handles = [
            hooks.register_module_forward_pre_hook(self._on_enter),
            hooks.register_module_forward_hook(self._on_leave, always_call=True),
        ]
        if hasattr(hooks, "_has_any_global_hook"):
            setattr(hooks, "_has_any_global_hook", self._others_have_hooks)  # noqa: B010 - of another type

    def uninstall(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._stack.clear()

    def new_step(self) -> None:
        """Start counting calls anew; whatever was interrupted will not return any more."""
        self._stack.clear()
        self.models.new_step()
        self.outputs.new_step()

    def forked(self) -> None:
        """Begin anew in a child process."""
        self._stack.clear()
        self._active = self._trained = self._training = self.called = False
        self.models = ModelWatch(self.session)
        self.outputs = OutputWatch(self.session)

    def _others_have_hooks(self) -> bool:
        mine = {handle.id for handle in self._handles}
        tables = (
            hooks._global_backward_pre_hooks,
            hooks._global_backward_hooks,
            hooks._global_forward_hooks,
            hooks._global_forward_pre_hooks,
            hooks._global_forward_hooks_always_called,
            hooks._global_forward_hooks_with_kwargs,
        )
        return any(key not in mine for table in tables for key in table)

    # -- hooks: what torch.compile traces of them is the first line ---------------------------------------------------

    def _on_enter(self, module: nn.Module, args: Any) -> None:
        if torch.compiler.is_compiling():
            return
        session = self.session
        if session.dead or not session.on_training_thread() or in_backward():
            return
        if self._stack:
            if self._active or module is self._stack[0].module:
                self._enter_inner(module)
        elif session.recording or session.registry.may_be_root(module):
            self._enter_root(module, args)

    def _on_leave(self, module: nn.Module, args: Any, output: Any) -> None:
        if torch.compiler.is_compiling():
            return
        if not self._stack or self.session.dead:
            return
        if not self._active and module is not self._stack[0].module:
            return
        if self.session.on_training_thread() and not in_backward():
            self._leave(module, args, output)

    def enter_compiled(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """Note the call of a module that ``Module.compile`` has compiled: no hook outside its region tells of it."""
        session = self.session
        if not session.dead and session.on_training_thread() and not in_backward():
            session.not_recorded(session.registry.name(module) or type(module).__name__, COMPILED)
            if self._stack:
                self._enter_inner(module)
            else:
                self._enter_root(module, args, kwargs)

    def leave_compiled(self, module: nn.Module, args: Any, output: Any) -> None:
        """Note the return of such a module."""
        self._on_leave(module, args, output)

    def enter_method(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """Note a call of a method that a framework makes in place of a call of its module."""
        session = self.session
        if not session.dead and not self._stack and session.on_training_thread() and not in_backward():
            self._enter_root(module, args, kwargs)

    def leave_method(self, module: nn.Module, args: Any, output: Any) -> None:
        """Note its return."""
        self._on_leave(module, args, output)

    @guarded
    def _enter_inner(self, module: nn.Module) -> None:
        if hidden() is None:
            now = generator_states() if self._active else None
            self._stack.append(Call(module, now if now is None or self._left is None else self._left))

    @guarded
    def _enter_root(self, module: nn.Module, args: Any, kwargs: Any = None) -> None:
        session = self.session
        self._active = False
        if (reason := hidden()) is not None:
            session.not_recorded(type(module).__name__, reason)
            return
        if not session.may_record():
            return
        caller = called_from()
        if caller != LOADER:
            self._begin(module, args, keywords() if kwargs is None else kwargs, inside_checkpoint=caller == CHECKPOINT)
            self._left = generator_states() if self._active else None
            self._stack.append(Call(module, self._left))

    @guarded
    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        if not any(call.module is module for call in self._stack) or hidden() is not None:
            return
        call = self._stack.pop()
        while call.module is not module:  # calls that ended without being seen to end
            call = self._stack.pop()
        if output is None:
            return
        if self._active:
            self.outputs.returned(module, args, output, call.generators)
            self.models.watch_gathered(module)
            self._left = generator_states()
        batch = self.outputs.batch
        if not self._stack and batch is not None:
            for _, made in named_tensors(output):
                tensor = own_rows(made)
                if tensor is not None and is_plain(tensor):
                    self.session.batches.came_from(tensor, batch)
        elif self._active:
            self.session.memory.inside(module)
        if not self._stack:
            self.session.comm.ends(Kind.FORWARD)
            if self._training:
                self.session.memory.at("forward")
            else:
                self.session.memory.evaluated(output)
            self.models.after_call()

    # -- the call of a model ------------------------------------------------------------------------------------------

    def _begin(self, module: nn.Module, args: Any, kwargs: Any, *, inside_checkpoint: bool) -> None:
        session = self.session
        with_gradients = torch.is_grad_enabled() or inside_checkpoint
        if with_gradients:
            session.ending.interrupt()
            self.called = True
            session.claim_thread(module)
            session.comm.begins(Kind.FORWARD)
        session.registry.called_as_root(module)
        self.models.called(module)
        batch = self._batch_of(module, args, kwargs, with_gradients=with_gradients)
        self.outputs.enter(batch)
        if not session.recording:
            return
        if not with_gradients and module.training:
            session.not_recorded(session.registry.name(module) or "", "called without gradients")
        self._active = session.detailed and with_gradients

    def _batch_of(self, module: nn.Module, args: Any, kwargs: Any, *, with_gradients: bool) -> Batch | None:
        session = self.session
        training = with_gradients and self._trains(module)
        if training:
            self.models.settle()
            session.metrics.close()
            session.memory.close_evaluation()
        else:
            session.metrics.evaluated()
        self._training = training
        batch, new = session.batches.enter(args, kwargs, training=training, module=module)
        if training and self._begins_anew(module, args, kwargs, new=new) and session.optimizers.ends_round(module):
            self.models.called(module)
            self.models.settle()
            batch, new = session.batches.enter(args, kwargs, training=training, module=module)
        if batch is None and session.recording:
            session.not_recorded(session.registry.name(module) or "", "no tensor among its inputs to tell samples by")
        if training and batch is not None:
            session.registry.hold(module)
        if batch is not None and new:
            self._record_samples(module, batch, training=training)
        # Behind what the recorder itself reads and keeps where a run's first batch comes.
        if training:
            session.memory.at("before_forward")
        else:
            session.memory.evaluates()
        return batch

    def _begins_anew(self, module: nn.Module, args: Any, kwargs: Any, *, new: bool) -> bool:
        """Whether gradients from this call are the module's own: it is a critic that is given what others made.

        A new batch alone says nothing: a generator is called, and its output detached, after its own update too.
        """
        if self.session.batches.is_detached_output(args, kwargs):
            self._critics.put(module, True)
            return True
        return new and module in self._critics

    def _trains(self, module: nn.Module) -> bool:
        """Whether a call with gradients is one of training: in evaluation mode only if training never was otherwise."""
        self._trained = self._trained or (module.training and next(module.parameters(), None) is not None)
        return module.training or not self._trained

    def _record_samples(self, module: nn.Module, batch: Batch, *, training: bool) -> None:
        session = self.session
        name = session.registry.name(module) or ""
        session.writer.facts.batch_shapes.setdefault(name, batch.shape)
        session.loaders.used(training=training)
        session.writer.samples(
            step=session.step,
            batch=batch.number,
            root=name,
            training=training,
            ids=batch.keys.ids,
            piece=batch.piece or (0, 0, 0),
        )
