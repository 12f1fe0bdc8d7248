"""What modules, parameters and buffers are called: the qualified names of the unwrapped model."""

import gc
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from ._identity import IdentityMap

_WRAPPER_CLASSES = {
    "DistributedDataParallel",
    "DataParallel",
    "FullyShardedDataParallel",
    "OptimizedModule",
    "CheckpointWrapper",
    "OffloadWrapper",
    "_FabricModule",
}
_SCAN_SECONDS = 5.0
"""How long the search for parents of called modules may take in a run, all together."""


def is_wrapper(module: nn.Module) -> bool:
    """Whether a module only wraps another one, as DDP, FSDP1, compile and checkpoint wrappers do."""
    return type(module).__name__ in _WRAPPER_CLASSES


def unwrap(module: nn.Module) -> nn.Module:
    """Return the user's own module inside any number of wrappers."""
    while is_wrapper(module):
        inner = next(module.children(), None)
        if inner is None:
            return module
        module = inner
    return module


def class_name(module: nn.Module) -> str:
    """Return the class of the unwrapped module; ``fully_shard`` puts FSDP before it."""
    kind = type(unwrap(module))
    return kind.__name__.removeprefix("FSDP") or kind.__name__ if _is_fully_shard(kind) else kind.__name__


def _is_fully_shard(kind: type) -> bool:
    return kind.__name__.startswith("FSDP") and any(base.__name__ == "FSDPModule" for base in kind.__mro__)


def walk(module: nn.Module, name: str = "", seen: set[int] | None = None) -> Iterator[tuple[str, nn.Module]]:
    """Yield every module once with its name, parents first; what a wrapper wraps goes by the wrapper's name."""
    seen = set() if seen is None else seen
    if id(module) in seen:
        return
    seen.add(id(module))
    yield name, module
    wraps = is_wrapper(module)
    for key, child in module.named_children():
        yield from walk(child, name if wraps or not key else f"{name}.{key}" if name else key, seen)


def own_tensors(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the parameters and buffers that a module itself holds."""
    yield from module.named_parameters(recurse=False, remove_duplicate=False)
    yield from module.named_buffers(recurse=False, remove_duplicate=False)


def _living_modules() -> Iterator[nn.Module]:
    for other in gc.get_objects():
        if issubclass(type(other), nn.Module) and "_modules" in other.__dict__:
            yield other


def topmost(module: nn.Module) -> nn.Module:
    """Return the outermost living module that contains ``module``: names are given from there.

    A script may call a submodule directly (``model.encode(x)``, ``ddp.module(x)``); its parents are found among
    the objects the garbage collector knows.
    """
    parents: dict[int, nn.Module] = {}
    for other in _living_modules():
        for child in other.__dict__["_modules"].values():
            if child is not None:
                parents.setdefault(id(child), other)
    seen = {id(module)}
    while (parent := parents.get(id(module))) is not None and id(parent) not in seen:
        seen.add(id(parent))
        module = parent
    return module


def owner_of(parameter: torch.Tensor) -> nn.Module | None:
    """Return a living module that holds ``parameter`` itself, or None."""
    for other in _living_modules():
        if any(held is parameter for held in other.__dict__.get("_parameters", {}).values()):
            return other
    return None


class Registry:
    """Names of everything that belongs to a model the script has called.

    The first model that has parameters gives names without a prefix. Names of further models start with their
    class, numbered from the second of a class on; modules without parameters or buffers, such as losses, share the
    name of their class, since scripts make new ones every step.
    """

    def __init__(self) -> None:
        self._names: IdentityMap[str] = IdentityMap()
        self._tops: list[tuple[weakref.ref[nn.Module], str]] = []
        self._roots: IdentityMap[bool] = IdentityMap()
        self._weak: IdentityMap[bool] = IdentityMap()
        self._held: IdentityMap[bool] = IdentityMap()
        self._top_of: IdentityMap[weakref.ref[nn.Module]] = IdentityMap()
        self._classes: dict[str, int] = {}
        self._first_seen = False
        self._seconds = 0.0

    def name(self, thing: nn.Module | torch.Tensor) -> str | None:
        """Return the name of a module, parameter or buffer, or None if it is unknown."""
        return self._names.get(thing)

    def put(self, thing: nn.Module | torch.Tensor, name: str) -> None:
        """Name something that no known model contains."""
        self._names.put(thing, name)

    def top_of(self, module: nn.Module) -> nn.Module:
        """Return the outermost unwrapped model that contains a known module; an unknown one is its own."""
        reference = self._top_of.get(module)
        top = reference() if reference is not None else None
        return module if top is None else top

    def may_be_root(self, module: nn.Module) -> bool:
        """Whether a call from outside any module can be of this one: unknown, called so before, or a whole model."""
        return module in self._roots or module not in self._names or self.top_of(module) is module

    def called_as_root(self, module: nn.Module) -> None:
        """Remember that the script itself calls this module."""
        self._roots.put(module, True)

    def hold(self, module: nn.Module) -> None:
        """Keep the names of this model even if it turns out to be a part of a larger one: it is trained."""
        top = unwrap(module)
        if top not in self._held:
            self._held.put(top, True)

    def late_name(self, module: nn.Module) -> str:
        """Return the name of a module; one that is in no known model, even now, gets that of its class."""
        if module not in self._names:
            self.refresh()
        if module not in self._names:
            self.put(module, class_name(module))
        return self._names.get(module) or class_name(module)

    def learn(self, module: nn.Module) -> nn.Module | None:
        """Name the model that ``module`` is a part of; return it unwrapped if it is new, else None."""
        bare = next(own_tensors_of_all(module), None) is None
        outermost = None if bare else self._search(topmost, module)
        top = unwrap(module if outermost is None else outermost)
        known = next((prefix for reference, prefix in self._tops if reference() is top), None)
        new = known is None and not (bare and class_name(top) in self._classes)
        if known is None and not bare:
            known = self._take_in(top)
        prefix = known if known is not None else self._prefix(top, bare=bare)
        if not bare and all(other is not top for other in self.living_tops()):
            self._tops = [entry for entry in self._tops if entry[0]() is not None]
            self._tops.append((weakref.ref(top), prefix))
        self._name_all(top, prefix, weak=bare)
        if module not in self._names:  # a wrapper: it goes by the name of what it wraps
            self.put(module, self.name(unwrap(module)) or class_name(module))
        return top if new else None

    def learn_owner(self, parameter: torch.Tensor) -> nn.Module | None:
        """Name the model that holds a parameter although no module of it was seen to be called; return it if new."""
        owner = self._search(owner_of, parameter)
        return self.learn(owner) if owner is not None else None

    def refresh(self) -> None:
        """Name what was put into known models since they were learnt."""
        for top, prefix in self._living():
            self._name_all(top, prefix, weak=False)

    def living_tops(self) -> Iterator[nn.Module]:
        """Yield the models that still exist."""
        for top, _ in self._living():
            yield top

    @property
    def all_gone(self) -> bool:
        """Whether models were learnt and none of them exists any more."""
        return bool(self._tops) and next(self._living(), None) is None

    def _living(self) -> Iterator[tuple[nn.Module, str]]:
        for reference, prefix in self._tops:
            top = reference()
            if top is not None:
                yield top, prefix

    def _search(self, how: Callable[[Any], nn.Module | None], thing: nn.Module | torch.Tensor) -> nn.Module | None:
        """Search the living objects, as long as all searches together stay cheap."""
        if self._seconds > _SCAN_SECONDS:
            return None
        started = time.perf_counter()
        found = how(thing)
        self._seconds += time.perf_counter() - started
        return found

    def _take_in(self, top: nn.Module) -> str | None:
        """Let models that were called while this one was being built become parts of it; return a prefix to inherit."""
        inside = {id(module) for module in top.modules()}
        taken = [(old, prefix) for old, prefix in self._living() if id(old) in inside]
        self._tops = [entry for entry in self._tops if all(entry[0]() is not old for old, _ in taken)]
        early = [(old, prefix) for old, prefix in taken if old not in self._held]
        for old, _ in early:
            for _, module in walk(old):
                self._names.remove(module)
                for _, tensor in own_tensors(module):
                    self._names.remove(tensor)
        return "" if any(not prefix for _, prefix in early) else None

    def _prefix(self, top: nn.Module, *, bare: bool) -> str:
        base = class_name(top)
        if not bare and not self._first_seen and next(top.parameters(), None) is not None:
            self._first_seen = True
            return ""
        number = 1 if bare else self._classes.get(base, 0) + 1
        self._classes[base] = number
        return f"{base}." if number == 1 else f"{base}#{number}."

    def _name_all(self, top: nn.Module, prefix: str, *, weak: bool) -> None:
        for name, module in walk(top):
            if not weak:
                self._top_of.put(module, weakref.ref(top))
            if module not in self._names or (module in self._weak and not weak):
                self.put(module, (prefix + name).rstrip(".") or class_name(top))
                self._weak.put(module, True) if weak else self._weak.remove(module)
            for key, tensor in own_tensors(module):
                if tensor is not None and tensor not in self._names:
                    self.put(tensor, f"{prefix}{name}.{key}" if name else prefix + key)


def own_tensors_of_all(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the parameters and buffers of a module and all below it."""
    for below in module.modules():
        yield from own_tensors(below)


def ties(top: nn.Module) -> dict[str, list[str]]:
    """Return the further names of parameters that a model holds under several names."""
    first: dict[int, str] = {}
    more: dict[str, list[str]] = {}
    for prefix, module in walk(top):
        for key, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            name = f"{prefix}.{key}" if prefix else key
            if first.setdefault(id(parameter), name) != name:
                more.setdefault(first[id(parameter)], []).append(name)
    return more
