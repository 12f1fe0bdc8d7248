"""Keeping account of what tensors hold, operation by operation, whether they have memory or are fakes that only say so.

Every storage that an operation makes is added when it appears and taken off when it goes; the most that was held is
kept with its phase, its operation, its module and what it consisted of. It stands below autograd, so that it sees what
backward and optimizers do as well; it is independent of the allocator of any device.
"""

import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ._workspace import refuse_unknown, workspace

PARAMETERS, BUFFERS, GRADIENTS, STATE = "parameters", "buffers", "gradients", "optimizer_state"
ACTIVATIONS, TEMPORARY, INPUTS, WORKSPACE = "activations", "temporary", "inputs", "workspace"
_OF_PHASE = {"forward": ACTIVATIONS, "backward": TEMPORARY, "optimizer": TEMPORARY, "between": TEMPORARY}
_IN_PLACE = {torch.ops.aten.index_put.default, torch.ops.aten.index_add.default, torch.ops.aten.scatter_add.default}
"""What backward does in place, into fresh zeros, unless somebody looks on."""
_BLOCK = {"cuda": 512}
"""Bytes to which the caching allocator of a device rounds up."""


@dataclass(frozen=True, kw_only=True)
class Peak:
    """The most that was held, and where."""

    bytes: int = 0
    phase: str = ""
    operation: str = ""
    module: str = ""
    categories: dict[str, int] = field(default_factory=dict)


@dataclass
class _Held:
    bytes: int
    category: str
    gone: Any


class Account(TorchDispatchMode):
    """Counts the bytes behind tensors while it is entered.

    Args:
        device: What the training will run on. ``cpu`` adds the private copies of its convolutions, ``cuda`` rounds each
            allocation up as its allocator does.
    """

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device = device
        self.steps: list[Peak] = [Peak()]
        self.now = 0
        self._block = _BLOCK.get(device, 1)
        self._held: dict[int, _Held] = {}
        self._by_category: dict[str, int] = {}
        self._optimizing = False
        self._modules: list[str] = []
        self._handles: list[Any] = []
        self._fakes: Any = None
        self._storage: Any = torch.UntypedStorage
        self._resize = self._storage.resize_

    # -- what there is before it begins -------------------------------------------------------------------------------

    def hold_model(self, model: nn.Module) -> None:
        """Add the parameters and buffers of a model, and gradients where it has some; follow new gradients."""
        for name, module in model.named_modules():
            self._handles.append(module.register_forward_pre_hook(self._entered(name or type(module).__name__)))
            self._handles.append(module.register_forward_hook(self._left, always_call=True))
        for parameter in model.parameters():
            self.hold([parameter], PARAMETERS)
            if parameter.requires_grad:
                self._handles.append(parameter.register_post_accumulate_grad_hook(self._accumulated))
            if parameter.grad is not None:
                self.hold([parameter.grad], GRADIENTS)
        self.hold(model.buffers(), BUFFERS)

    def hold_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Add an optimizer's state, as far as it has one."""
        self.hold((t for state in optimizer.state.values() for t in state.values()), STATE)

    def hold(self, tensors: Iterable[Any], category: str) -> None:
        """Add tensors, or call those that are known already by another category."""
        for tensor in tensors:
            if isinstance(tensor, torch.Tensor):
                self._take(tensor, category, anew=True)
        self._reached("")

    # -- while it runs ------------------------------------------------------------------------------------------------

    @property
    def phase(self) -> str:
        """The phase of a step in which the program is."""
        if self._optimizing:
            return "optimizer"
        if torch._C._current_graph_task_id() != -1:
            return "backward"
        return "forward" if self._modules or torch.is_grad_enabled() else "between"

    def end_step(self) -> None:
        """Begin a new step; its peak is counted from what is held now."""
        self.steps.append(Peak())
        self._modules.clear()
        self._reached("")

    def __enter__(self) -> "Account":
        """Begin to count."""
        if not self._resize_patched():
            self._handles += [
                register_optimizer_step_pre_hook(self._optimizer_begins),
                register_optimizer_step_post_hook(self._optimizer_ends),
            ]
            self._storage.resize_ = self._resized()
        super().__enter__()
        self._fakes = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE)
        return self

    def close(self) -> None:
        """Take every hook off again."""
        self._storage.resize_ = self._resize
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation and count what it made."""
        if any(hasattr(kind, "from_local") for kind in types):  # a DTensor: its local operations come by themselves
            return NotImplemented
        if "wait_tensor" in func.__name__:  # the kernel for fakes makes a copy that the real one does not make
            result = args[0]
        else:
            result = func(*args, **(kwargs or {}))
        if torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not self._fakes:
            return result  # DTensor propagates shapes with fakes of its own
        refuse_unknown(func, result)
        before = self.now
        category = self._category()
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self._take(leaf, category)
        if func in _IN_PLACE and category == TEMPORARY:
            return result
        scratch = workspace(func, args, result) if self.device == "cpu" else 0
        self._reached(str(func), scratch - (self.now - before) if scratch else 0)
        return result

    def _category(self) -> str:
        phase = self.phase
        recomputed = phase == "backward" and torch.is_grad_enabled()
        return ACTIVATIONS if recomputed else _OF_PHASE[phase]

    def _take(self, tensor: torch.Tensor, category: str, *, anew: bool = False) -> None:
        for storage in _storages(tensor):
            known = self._held.get(storage._cdata)
            if known is None:
                self._add(storage, category)
            elif anew and known.category != category:
                self._count(known.category, -known.bytes)
                known.category = category
                self._count(category, known.bytes)

    def _add(self, storage: Any, category: str) -> None:
        key, size = storage._cdata, self._rounded(storage.nbytes())
        self._held[key] = _Held(size, category, weakref.ref(storage, lambda _: self._drop(key)))
        self._count(category, size)

    def _drop(self, key: int) -> None:
        gone = self._held.pop(key, None)
        if gone is not None:
            self._count(gone.category, -gone.bytes)

    def _count(self, category: str, num_bytes: int) -> None:
        self._by_category[category] = self._by_category.get(category, 0) + num_bytes
        self.now += num_bytes

    def _rounded(self, num_bytes: int) -> int:
        return -(-num_bytes // self._block) * self._block

    def _reached(self, operation: str, scratch: int = 0) -> None:
        held = self.now + max(scratch, 0)
        if held > self.steps[-1].bytes:
            categories = {name: held for name, held in self._by_category.items() if held}
            if scratch > 0:
                categories[WORKSPACE] = scratch
            module = self._modules[-1] if self._modules else ""
            self.steps[-1] = Peak(
                bytes=held, phase=self.phase, operation=operation, module=module, categories=categories
            )

    # -- hooks --------------------------------------------------------------------------------------------------------

    def _entered(self, name: str) -> Callable[..., None]:
        def enter(module: nn.Module, args: Any) -> None:
            self._modules.append(name)

        return enter

    def _left(self, module: nn.Module, args: Any, output: Any) -> None:
        if self._modules:
            self._modules.pop()

    def _accumulated(self, parameter: torch.Tensor) -> None:
        if parameter.grad is not None:
            self._take(parameter.grad, GRADIENTS, anew=True)

    def _optimizer_begins(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._optimizing = True

    def _optimizer_ends(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        self._optimizing = False
        for state in optimizer.state.values():
            for each in state.values():
                if isinstance(each, torch.Tensor):
                    self._take(each, STATE, anew=True)

    def _resize_patched(self) -> bool:
        return self._storage.resize_ is not self._resize

    def _resized(self) -> Callable[[Any, int], Any]:
        def resize_(storage: Any, size: int) -> Any:
            result = self._resize(storage, size)
            known = self._held.get(storage._cdata)
            if known is not None:
                more = self._rounded(storage.nbytes()) - known.bytes
                known.bytes += more
                self._count(known.category, more)
                self._reached("resize_")
            return result

        return resize_


def _storages(tensor: torch.Tensor) -> list[Any]:
    """Return the storages behind a tensor; of a subclass that wraps others (DTensor), theirs."""
    flatten = getattr(tensor, "__tensor_flatten__", None)
    if flatten is not None and not isinstance(getattr(tensor, "fake_mode", None), FakeTensorMode):
        inner = (getattr(tensor, name) for name in flatten()[0])
        return [storage for each in inner if isinstance(each, torch.Tensor) for storage in _storages(each)]
    if tensor.layout != torch.strided:
        parts = [tensor.indices(), tensor.values()] if tensor.layout == torch.sparse_coo else []
        return [storage for part in parts for storage in _storages(part)]
    return [tensor.untyped_storage()]
