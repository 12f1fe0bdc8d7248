"""What only a framework knows: that its steps are calls of the model, and which samples it does not count.

On one device Lightning calls ``LightningModule.training_step`` as a plain method, and under DDP as the forward of the
wrapped module. Here the method counts as a call of the module on one device too, so that both hold the same samples.

Accelerate gives every rank as many batches of an evaluation by repeating samples, and ``gather_for_metrics`` takes the
repeated ones out of what it has gathered. Here it is noted how many those were.
"""

import functools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ._batch import named_tensors
from ._guard import guarded

if TYPE_CHECKING:
    from ._session import Session

_STRATEGIES = ("lightning.pytorch.strategies.strategy", "pytorch_lightning.strategies.strategy")
_GATHERS = "accelerate.accelerator"
_TAKES_OUT = "_adjust_samples"
"""Name of the function by which ``Accelerator.gather_for_metrics`` cuts what it has gathered."""
_STEPS = ("training_step", "validation_step", "test_step")


class FrameworkWatch:
    """Wraps functions of frameworks once they have been imported; ``look`` is called where an optimizer is made."""

    def __init__(self, session: "Session") -> None:
        self.session = session
        self._followed: set[str] = set()

    def look(self) -> None:
        """Wrap what has been imported since; both names under which Lightning is installed may be."""
        for name in _STRATEGIES:
            module = sys.modules.get(name)
            if module is not None and name not in self._followed:
                self._followed.add(name)
                for step in _STEPS:
                    self._follow(module.Strategy, step)

        gathers = sys.modules.get(_GATHERS)
        if gathers is not None and _GATHERS not in self._followed and hasattr(gathers, "recursively_apply"):
            self._followed.add(_GATHERS)
            self._watch_gathers(gathers)

    def _watch_gathers(self, module: ModuleType) -> None:
        original: Callable[..., Any] = module.recursively_apply

        @functools.wraps(original)
        def call(function: Any, data: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(function, data, *args, **kwargs)
            if getattr(function, "__name__", "") == _TAKES_OUT:
                self._took_out(data, result)
            return result

        setattr(module, "recursively_apply", call)  # noqa: B010 - of whatever version

    @guarded
    def _took_out(self, gathered: Any, kept: Any) -> None:
        sizes = [next((t.shape[0] for _, t in named_tensors(value) if t.dim()), 0) for value in (gathered, kept)]
        self.session.metrics.dropped(sizes[0] - sizes[1])

    def _follow(self, strategy: type, step: str) -> None:
        original = getattr(strategy, step, None)
        if original is None:  # another version of Lightning
            return
        forward = self.session.forward

        @functools.wraps(original)
        def call(this: Any, *args: Any, **kwargs: Any) -> Any:
            module = this.lightning_module
            if module is None or this.model is not module:  # its wrapper is called, as a module
                return original(this, *args, **kwargs)
            forward.enter_method(module, args, kwargs)
            result = None
            try:
                result = original(this, *args, **kwargs)
            finally:
                forward.leave_method(module, args, result)
            return result

        setattr(strategy, step, call)
