"""What modules return: activations and, once backward reaches them, their gradients."""

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from ddparity.digest import RowKeys, digest_tensor
from ddparity.trace import FLAG_GRAD, FLAG_RANDOM, FLAG_TRAINING, Site

from ._batch import Batch, named_tensors
from ._callers import inside_checkpoint
from ._guard import guarded, in_backward, is_plain, unserializable
from ._identity import IdentityMap
from ._names import is_wrapper, unwrap
from ._placement import own_rows

if TYPE_CHECKING:
    from ._session import Session

_MAX_PARTS = 16


class OutputWatch:
    """Digests of module outputs, keyed by sample where their rows belong to samples."""

    def __init__(self, session: "Session") -> None:
        self.session = session
        self.batch: Batch | None = None
        self._occurrences: dict[tuple[str, int], int] = defaultdict(int)
        self._versions: IdentityMap[int] = IdentityMap()
        self._leaves: list[Any] = []

    def new_step(self) -> None:
        """Start counting calls anew."""
        self._occurrences.clear()
        self._versions.clear()
        for handle in self._leaves:  # hooks on leaves would outlive the step
            handle.remove()
        self._leaves.clear()

    def enter(self, batch: Batch | None) -> None:
        """Take the batch of the call that begins."""
        self.batch = batch

    def returned(self, module: nn.Module, args: Any, output: Any, generators: Any) -> None:
        """Record what a module returned."""
        session = self.session
        if is_wrapper(module):
            if type(module).__name__ != "OptimizedModule":
                return
            module = unwrap(module)  # its own hooks did nothing inside the compiled region
        name = session.registry.late_name(module)
        flags = FLAG_GRAD | (FLAG_TRAINING if module.training else 0)
        if generators is not None and not same_states(generators, generator_states()):
            flags |= FLAG_RANDOM
        found = list(self._parts(name, module, output))
        if not found:
            return
        occurrence = self._occurrence(name)
        positions = args[0] if _takes_positions(args, self.batch) else None
        for part, tensor in found:
            self.record(tensor, name, part, type(module).__name__, occurrence, flags, positions=positions)

    def mark(self, name: str, tensor: torch.Tensor) -> None:
        """Record a tensor that the script names itself (``ddparity.mark``)."""
        if self.session.recording and is_plain(tensor) and not in_backward():
            if self.batch is None:
                self.batch = self.session.batches.current
            occurrence = self._occurrence(f"mark:{name}")
            self.record(tensor, name, "", "mark", occurrence, FLAG_GRAD | FLAG_TRAINING)

    def _occurrence(self, name: str) -> int:
        key = (name, self.batch.number if self.batch is not None else -1)
        self._occurrences[key] += 1
        return self._occurrences[key] - 1

    def _parts(self, name: str, module: nn.Module, output: Any) -> Any:
        for count, (part, tensor) in enumerate(named_tensors(output)):
            if count >= _MAX_PARTS:
                self.session.not_recorded(name, f"more than {_MAX_PARTS} output tensors")
                return
            if not tensor.is_floating_point() and not tensor.is_complex():
                continue
            rows = own_rows(tensor)
            if rows is None or not is_plain(rows):
                self.session.not_recorded(name, f"activation: {type(tensor).__name__}, layout {tensor.layout}")
            elif self._is_new(tensor, module):
                yield part, tensor

    def _is_new(self, tensor: torch.Tensor, module: nn.Module) -> bool:
        """Whether no submodule has just returned this very tensor."""
        if tensor.is_inference():  # keeps no count of its versions: what contains others hands theirs on
            if tensor in self._versions and next(module.children(), None) is not None:
                return False
            self._versions.put(tensor, 0)
            return True
        version = tensor._version
        if self._versions.get(tensor) == version:
            return False
        self._versions.put(tensor, version)
        return True

    def record(
        self,
        tensor: torch.Tensor,
        name: str,
        part: str,
        module: str,
        occurrence: int,
        flags: int,
        *,
        positions: torch.Tensor | None = None,
    ) -> None:
        """Digest an activation and watch its gradient."""
        batch, rows_here = self.batch, own_rows(tensor)
        if rows_here is None:
            return
        shape = tuple(rows_here.shape)
        rows, start, whole = batch.place(shape) if batch is not None and positions is None else (0, 0, shape)
        where = {
            "name": name,
            "part": part,
            "module": module,
            "batch": batch.number if batch is not None else -1,
            "occurrence": occurrence,
            "rows": rows,
            "flags": flags,
        }
        rows_at = RowsAt(batch.keys, start, whole) if batch is not None and rows else None
        if positions is not None and batch is not None:
            where |= _part_of_positions(shape, tuple(positions.shape), batch)
        self._write(rows_here, Site.ACTIVATION, rows_at, where)
        if tensor.requires_grad:
            self._watch_gradient(tensor, rows_at, where)
        elif not torch.is_grad_enabled() and inside_checkpoint():
            self.session.not_recorded(name, "activation gradients inside a reentrant checkpoint")

    def _watch_gradient(self, tensor: torch.Tensor, rows_at: "RowsAt | None", where: dict[str, Any]) -> None:
        step = self.session.step

        def on_gradient(gradient: torch.Tensor) -> None:
            if self.session.step == step:
                self._gradient(gradient, rows_at, where)

        handle = tensor.register_hook(unserializable(on_gradient))
        if tensor.is_leaf:
            self._leaves.append(handle)

    @guarded
    def _gradient(self, gradient: torch.Tensor, rows_at: "RowsAt | None", where: dict[str, Any]) -> None:
        own = own_rows(gradient)
        if self.session.recording and own is not None and is_plain(own):
            self._write(own, Site.ACTIVATION_GRADIENT, rows_at, {**where, "backward": self.session.backwards})

    def _write(self, tensor: torch.Tensor, site: Site, rows_at: "RowsAt | None", where: dict[str, Any]) -> None:
        turned = tensor.transpose(0, 1) if where["rows"] < 0 else tensor
        if rows_at is None:
            offsets, whole = where.get("offsets"), where.get("global_shape")
            digest = digest_tensor(turned.detach(), offsets=offsets, global_shape=whole)
        else:
            digest = digest_tensor(turned.detach(), row_keys=rows_at.keys, row_start=rows_at.start)
            if rows_at.start or rows_at.whole != tuple(tensor.shape):  # a slice: what merges has the whole's shape
                whole = rows_at.whole
                digest = replace(digest, shape=(whole[1], whole[0], *whole[2:]) if where["rows"] < 0 else whole)
        self.session.writer.digest(digest, site=site, step=self.session.step, **where)


class RowsAt(NamedTuple):
    """Which samples the rows of a tensor belong to, and which part of each sample they are."""

    keys: RowKeys
    start: int
    whole: tuple[int, ...]


def generator_states() -> tuple[torch.Tensor, int]:
    """Return the state of the generators that modules draw from: the CPU's, and the place in the device's stream."""
    place = 0
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        place = torch.cuda.default_generators[torch.cuda.current_device()].get_offset()
    return torch.get_rng_state(), place


def same_states(before: tuple[torch.Tensor, int], now: tuple[torch.Tensor, int]) -> bool:
    """Whether nothing was drawn between two states."""
    return before[1] == now[1] and torch.equal(before[0], now[0])


def _part_of_positions(shape: tuple[int, ...], positions: tuple[int, ...], batch: Batch) -> dict[str, Any]:
    """Return where the outputs of a slice of positions stand in those of all; nothing where the batch is no slice."""
    if batch.piece is None or not positions or shape[: len(positions)] != positions:
        return {}
    (start, stop, total), dim = batch.piece, len(positions) - 1
    if positions[dim] != stop - start:
        return {}
    offsets = tuple(start if d == dim else 0 for d in range(len(shape)))
    return {"offsets": offsets, "global_shape": (*shape[:dim], total, *shape[dim + 1 :])}


def _takes_positions(args: Any, batch: Batch | None) -> bool:
    """Whether a module was given 0, 1, 2, ... and nothing else: what it returns belongs to positions, not samples."""
    if batch is None or len(args) != 1 or not isinstance(args[0], torch.Tensor):
        return False
    given = args[0]
    if not is_plain(given) or given.is_floating_point() or given.is_complex() or given.dtype == torch.bool:
        return False
    length = given.shape[-1] if given.dim() else 0
    if length < 2 or given.numel() != length or batch.holds(given):
        return False
    given = given.detach().reshape(-1)
    return torch.equal(given - given[0], torch.arange(length, dtype=given.dtype, device=given.device))
