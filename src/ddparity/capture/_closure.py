"""Closures that optimizers evaluate inside ``step()``: watched by one that stands in for them."""

import functools
from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer


class Closure:
    """Calls the user's closure and says how often it has been called; the result passes untouched."""

    def __init__(self, closure: Callable[..., Any], evaluated: Callable[[int], None]) -> None:
        functools.update_wrapper(self, closure)
        self._closure = closure
        self._evaluated = evaluated
        self._count = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        result = self._closure(*args, **kwargs)
        self._count += 1
        self._evaluated(self._count)
        return result


def closure_of(args: Any, kwargs: Any) -> Callable[..., Any] | None:
    """Return the closure that ``step`` was called with; hooks see the optimizer itself as the first argument."""
    if callable(kwargs.get("closure")):
        return kwargs["closure"]
    return next((a for a in args if callable(a) and not isinstance(a, Optimizer)), None)


def replace_closure(args: Any, kwargs: Any, closure: Closure) -> tuple[Any, Any]:
    """Return the arguments of ``step`` with the closure replaced."""
    if callable(kwargs.get("closure")):
        return args, {**kwargs, "closure": closure}
    place = next(i for i, a in enumerate(args) if callable(a) and not isinstance(a, Optimizer))
    return (*args[:place], closure, *args[place + 1 :]), kwargs
