"""Random generators that a dataset may draw from: the global ones, and those it holds itself. Nothing is drawn."""

import functools
import random
import sys
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from types import FunctionType, MethodType
from typing import Any

import numpy as np
import torch

_MAX_DEPTH = 5
_MAX_OBJECTS = 2000
_MAX_ITEMS = 64
_LEAVES = (str, bytes, int, float, complex, bool, type(None), type, torch.Tensor, np.ndarray, torch.nn.Module)
_GENERATORS = (np.random.Generator, np.random.RandomState, random.Random, torch.Generator)

Named = dict[str, Any]


def generators_of(*roots: tuple[str, Any]) -> Named:
    """Return every generator that can be reached from named objects, by the path to it.

    Attributes, items, closures and the global names of functions and of the objects' own modules are followed.
    """
    found: Named = {}
    seen: set[int] = set()
    waiting = [(name, value, 0) for name, value in roots]
    while waiting and len(seen) < _MAX_OBJECTS:
        path, value, depth = waiting.pop(0)
        if isinstance(value, _LEAVES) or id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, _GENERATORS):
            found[path] = value
        elif depth < _MAX_DEPTH:
            waiting += [(f"{path}.{name}", inner, depth + 1) for name, inner in _inside(value)]
    return found


def _inside(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        yield from ((str(key)[:40], inner) for key, inner in _first(value.items()))
    elif isinstance(value, (list, tuple, set)):
        yield from ((str(number), inner) for number, inner in enumerate(_first(value)))
    elif isinstance(value, functools.partial):
        yield from _pairs(func=value.func, args=value.args, keywords=value.keywords)
    elif isinstance(value, MethodType):
        yield from _pairs(self=value.__self__, func=value.__func__)
    elif isinstance(value, FunctionType):
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=False):
            try:
                yield name, cell.cell_contents
            except ValueError:  # not filled yet
                continue
        yield from _globals(value.__globals__, value.__code__.co_names)
    else:
        attributes = getattr(value, "__dict__", None)
        if isinstance(attributes, dict):
            yield from _first(attributes.items())
        yield from _globals_of_class(type(value))


def _pairs(**values: Any) -> Iterator[tuple[str, Any]]:
    """Yield keyword arguments as pairs."""
    yield from values.items()


def _globals_of_class(cls: type) -> Iterator[tuple[str, Any]]:
    module = sys.modules.get(cls.__module__)
    if module is None or cls.__module__.partition(".")[0] in ("torch", "numpy", "builtins", "random"):
        return
    yield from _globals(vars(module), list(vars(module)))


def _globals(names: Mapping[str, Any], wanted: Any) -> Iterator[tuple[str, Any]]:
    """Yield generators among a module's global names; nothing else of a module is followed."""
    for name in wanted:
        value = names.get(name)
        if isinstance(value, _GENERATORS):
            yield name, value


def _first(values: Any) -> Iterator[Any]:
    for number, value in enumerate(list(values)):
        if number >= _MAX_ITEMS:
            return
        yield value


def states(held: Named) -> dict[str, str]:
    """Return a digest of the state of each global generator and of each held one."""
    found = {
        "torch": torch.get_rng_state(),
        "numpy": np.random.get_state(legacy=False),
        "python": random.getstate(),
        **{name: _state(generator) for name, generator in held.items()},
    }
    return {name: _digest(state) for name, state in found.items()}


def _state(generator: Any) -> Any:
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    if isinstance(generator, np.random.RandomState):
        return generator.get_state(legacy=False)
    if isinstance(generator, random.Random):
        return generator.getstate()
    return generator.get_state()


def _digest(state: Any) -> str:
    digest = blake2b(digest_size=8)
    _update(digest, state)
    return digest.hexdigest()


def _update(digest: Any, state: Any) -> None:
    if isinstance(state, torch.Tensor):
        digest.update(state.cpu().numpy().tobytes())
    elif isinstance(state, np.ndarray):
        digest.update(state.tobytes())
    elif isinstance(state, Mapping):
        for key in sorted(state):
            digest.update(str(key).encode())
            _update(digest, state[key])
    else:
        digest.update(repr(state).encode())
