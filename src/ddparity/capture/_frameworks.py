"""Frameworks in which a call of the model is no call of a module: Lightning's steps.

On one device Lightning calls ``LightningModule.training_step`` as a plain method, and under DDP as the forward of the
wrapped module. Here the method counts as a call of the module on one device too, so that both hold the same samples.
"""

import functools
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._session import Session

_STRATEGIES = ("lightning.pytorch.strategies.strategy", "pytorch_lightning.strategies.strategy")
_STEPS = ("training_step", "validation_step", "test_step")


class FrameworkWatch:
    """Wraps the steps of Lightning once it has been imported; ``look`` is called where an optimizer is made."""

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
