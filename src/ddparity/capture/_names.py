"""What modules, parameters and buffers are called: the qualified names of the unwrapped model."""

import gc
import re
import weakref
from collections.abc import Iterator

import torch
from torch import nn

_WRAPPER_PREFIXES = re.compile(r"(?:^|(?<=\.))(?:_orig_mod|_checkpoint_wrapped_module|_fsdp_wrapped_module)\.")
_WRAPPER_SUFFIXES = re.compile(r"(?:^|\.)(?:_orig_mod|_checkpoint_wrapped_module|_fsdp_wrapped_module)$")
_WRAPPER_CLASSES = {
    "DistributedDataParallel",
    "DataParallel",
    "FullyShardedDataParallel",
    "OptimizedModule",
    "CheckpointWrapper",
}


def is_wrapper(module: nn.Module) -> bool:
    """Whether a module only wraps another one, as DDP, FSDP1, compile and checkpoint wrappers do."""
    return type(module).__name__ in _WRAPPER_CLASSES


def unwrap(module: nn.Module) -> nn.Module:
    """Return the user's own module inside any number of wrappers."""
    while is_wrapper(module):
        inner = next(iter(module.children()), None)
        if inner is None:
            return module
        module = inner
    return module


def clean_name(name: str) -> str:
    """Strip what compile, checkpoint and FSDP wrappers put into a qualified name."""
    return _WRAPPER_SUFFIXES.sub("", _WRAPPER_PREFIXES.sub("", name))


def class_name(module: nn.Module) -> str:
    """Return the class of the unwrapped module; ``fully_shard`` puts FSDP before it."""
    kind = type(unwrap(module))
    return kind.__name__.removeprefix("FSDP") or kind.__name__ if _is_fully_shard(kind) else kind.__name__


def _is_fully_shard(kind: type) -> bool:
    return kind.__name__.startswith("FSDP") and any(base.__name__ == "FSDPModule" for base in kind.__mro__)


def topmost(module: nn.Module) -> nn.Module:
    """Return the outermost living module that contains ``module``: names are given from there.

    A script may call a submodule directly (``model.encode(x)``, ``ddp.module(x)``); its parents are found among
    the objects the garbage collector knows.
    """
    parents: dict[int, nn.Module] = {}
    for other in gc.get_objects():
        if issubclass(type(other), nn.Module) and "_modules" in other.__dict__:
            for child in other.__dict__["_modules"].values():
                if child is not None:
                    parents.setdefault(id(child), other)
    seen = {id(module)}
    while (parent := parents.get(id(module))) is not None and id(parent) not in seen:
        seen.add(id(parent))
        module = parent
    return module


class Registry:
    """Names of everything that belongs to a model the script has called.

    Attributes:
        tops: The outermost unwrapped modules found so far, in order, as weak references.
    """

    def __init__(self) -> None:
        self.tops: list[weakref.ref[nn.Module]] = []
        self._names: dict[int, tuple[weakref.ref, str]] = {}
        self._prefixes: set[str] = set()
        self._first_seen = False

    def name(self, thing: nn.Module | torch.Tensor) -> str | None:
        """Return the name of a module, parameter or buffer, or None if it is unknown."""
        entry = self._names.get(id(thing))
        return entry[1] if entry is not None and entry[0]() is thing else None

    def put(self, thing: nn.Module | torch.Tensor, name: str) -> None:
        """Name something that no known model contains."""
        self._names[id(thing)] = (weakref.ref(thing), name)

    def learn(self, module: nn.Module) -> nn.Module | None:
        """Name the model that ``module`` is a part of; return it unwrapped if it is new, else None."""
        top = unwrap(topmost(module))
        known = self.name(top) is not None
        prefix = "" if known else self._prefix(top)
        if not known:
            self.tops.append(weakref.ref(top))
        self._name_all(top, prefix)
        if self.name(module) is None:  # a wrapper: it goes by the name of what it wraps
            self.put(module, self.name(unwrap(module)) or class_name(module))
        return None if known else top

    def living_tops(self) -> Iterator[nn.Module]:
        """Yield the models that still exist."""
        for reference in self.tops:
            top = reference()
            if top is not None:
                yield top

    def _prefix(self, top: nn.Module) -> str:
        """The first model's names have no prefix; those of further models and of losses start with their class."""
        base = class_name(top)
        if not self._first_seen and next(top.parameters(), None) is not None:
            self._first_seen = True
            return ""
        prefix, number = base, 1
        while prefix in self._prefixes:
            number += 1
            prefix = f"{base}#{number}"
        self._prefixes.add(prefix)
        return prefix + "."

    def _name_all(self, top: nn.Module, prefix: str) -> None:
        for name, module in top.named_modules():
            if self.name(module) is None:
                self.put(module, (prefix + clean_name(name)).rstrip(".") or class_name(top))
        for name, tensor in [*top.named_parameters(), *top.named_buffers()]:
            if self.name(tensor) is None:
                self.put(tensor, prefix + clean_name(name))


def ties(top: nn.Module) -> dict[str, list[str]]:
    """Return the further names of parameters that a model holds under several names."""
    first: dict[int, str] = {}
    more: dict[str, list[str]] = {}
    for name, parameter in top.named_parameters(remove_duplicate=False):
        name = clean_name(name)
        if first.setdefault(id(parameter), name) != name:
            more.setdefault(first[id(parameter)], []).append(name)
    return more
