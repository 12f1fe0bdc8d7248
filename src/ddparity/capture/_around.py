"""Wrapping a function of torch so that a call is noted before and after; arguments and results pass untouched."""

import functools
from collections.abc import Callable
from typing import Any

import torch

Args = tuple[Any, ...]
Kwargs = dict[str, Any]


def around(
    owner: Any,
    name: str,
    *,
    before: Callable[..., None] | None = None,
    after: Callable[..., None] | None = None,
    keep: str | None = None,
) -> Callable[..., Any] | None:
    """Wrap ``owner.name``; ``after`` gets the result before the arguments.

    ``keep`` names the first argument where it may be a generator: looking at it must not use it up.
    """
    original = getattr(owner, name, None)
    if original is None:  # another version of torch
        return None

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return original(*args, **kwargs)
        seen, seen_kwargs = args, kwargs
        if keep is not None:
            args, kwargs, seen, seen_kwargs = _keep_iterator(keep, args, kwargs)
        if before is not None:
            before(*seen, **seen_kwargs)
        result = original(*args, **kwargs)
        if after is not None:
            after(result, *seen, **seen_kwargs)
        return result

    setattr(owner, name, call)
    return call


def _keep_iterator(keep: str, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs, Args, Kwargs]:
    """Return the arguments for the function, with a new generator for one given, and those to look at, with a list."""
    given: Any = args[0] if args else kwargs.get(keep)
    if not hasattr(given, "__next__"):
        return args, kwargs, args, kwargs
    listed = list(given)
    if args:
        return ((item for item in listed), *args[1:]), kwargs, (listed, *args[1:]), kwargs
    return args, {**kwargs, keep: (item for item in listed)}, args, {**kwargs, keep: listed}
