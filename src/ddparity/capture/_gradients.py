"""Parameter gradients: the local ones before synchronisation, and what the optimizer is given."""

import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from ddparity.digest import digest_tensor
from ddparity.trace import Event, Site

from ._flat import FlatShards
from ._guard import guarded, is_freed, is_plain, unserializable
from ._identity import IdentityMap
from ._placement import Located

if TYPE_CHECKING:
    from ._session import Session

_MAX_DENSE = 1 << 27
"""Largest sparse gradient, in elements of the dense tensor, that is made dense to be digested."""


class GradientWatch:
    """Hooks on leaf parameters (they fire before DDP's reduction) and readings of ``.grad``.

    Attributes:
        unplaced: Names of parameters of which this rank holds a part, without a way to tell which.
        flat: The flat shards of FSDP1.
    """

    def __init__(self, session: "Session") -> None:
        self.session = session
        self._handles: IdentityMap[Any] = IdentityMap()
        self._synced: IdentityMap[bool] = IdentityMap()
        self._order: list[str] = []
        self._modified = False
        self.unplaced: set[str] = set()
        self.flat = FlatShards()

    def attach(self, parameters: Iterable[torch.Tensor]) -> None:
        """Watch the gradients of parameters that require one."""
        for parameter in parameters:
            if parameter in self._handles or not parameter.requires_grad or not parameter.is_leaf or is_lazy(parameter):
                continue
            self._handles.put(parameter, parameter.register_hook(self._hook(parameter)))

    def _hook(self, parameter: torch.Tensor) -> Any:
        reference = weakref.ref(parameter)

        def on_gradient(gradient: torch.Tensor) -> None:
            self._local(gradient, reference())

        return unserializable(on_gradient)

    def detach(self) -> None:
        """Remove every hook: a closed window costs nothing in backward."""
        for handle in self._handles.values():
            handle.remove()
        self._handles.clear()

    def new_step(self) -> None:
        """Forget what was read in the step before."""
        self._synced.clear()
        self._order.clear()
        self._modified = False

    @guarded
    def _local(self, gradient: torch.Tensor, parameter: torch.Tensor | None) -> None:
        session = self.session
        if not session.recording or parameter is None:
            return
        name = session.registry.name(parameter) or session.optimizers.name_stranger(parameter)
        self._order.append(name)
        if session.world_size > 1:  # alone, the local gradient is what the optimizer is given
            self.record(gradient.detach(), Site.LOCAL_GRADIENT, name, backward=session.backwards)

    @guarded
    def sync(self, parameters: Iterable[torch.Tensor]) -> None:
        """Record the gradients that are about to be clipped, unscaled or applied, once a step."""
        session = self.session
        if not session.recording:
            return
        if self._order:
            session.writer.event(Event.GRADIENT_ORDER, step=session.step, order=list(dict.fromkeys(self._order)))
            self._order.clear()
        for parameter in parameters:
            if parameter in self._synced:
                continue
            name = session.registry.name(parameter) or "?"
            if parameter.grad is not None:
                self._synced.put(parameter, True)
                self.record(parameter.grad.detach(), Site.SYNCED_GRADIENT, name, with_hash=True)
            elif self.flat.missing(name) is not None:  # the rank holds nothing of it
                self._synced.put(parameter, True)
                self.record(parameter.detach().view(-1), Site.SYNCED_GRADIENT, name, with_hash=True)

    def modified(self) -> None:
        """Note that clipping or unscaling changed gradients after :meth:`sync`."""
        self._modified = True

    @guarded
    def before_step(self, parameters: Iterable[torch.Tensor]) -> None:
        """Record what the optimizer is given, where that is not what was synchronised."""
        session = self.session
        if session.recording and self._modified:
            for parameter in parameters:
                if parameter.grad is not None:
                    name = session.registry.name(parameter) or "?"
                    self.record(parameter.grad.detach(), Site.STEP_GRADIENT, name, with_hash=True)

    def record(
        self,
        tensor: torch.Tensor,
        site: Site,
        name: str,
        *,
        part: str = "",
        with_hash: bool = False,
        backward: int = 0,
        step: int | None = None,
    ) -> bool:
        """Digest a parameter-like tensor by position; the hash only where there are replicas to compare.

        Returns:
            Whether it could be digested; what could not is named as not recorded.
        """
        session = self.session
        if name in self.unplaced:
            session.not_recorded(name, "a flat shard of FullyShardedDataParallel: nobody knows its place")
            return False
        if tensor.layout == torch.sparse_coo and tensor.numel() <= _MAX_DENSE:
            tensor = tensor.coalesce().to_dense()
        parts = self.flat.parts(tensor, name)
        if parts is not None:
            found = [
                self._write(located, site, each, part=part, with_hash=with_hash, backward=backward, step=step)
                for each, located in parts
            ]
            return all(found)
        located = session.pieces.locate(tensor, name)
        return self._write(located, site, name, part=part, with_hash=with_hash, backward=backward, step=step)

    def _write(
        self, located: Located, site: Site, name: str, *, part: str, with_hash: bool, backward: int, step: int | None
    ) -> bool:
        session = self.session
        local, offsets, global_shape, placement = located
        if not is_plain(local):
            session.not_recorded(name, f"{site}: {_what(local)}")
            return False
        writer = session.writer  # opens the trace, and so finds out the world size
        digest = digest_tensor(
            local, offsets=offsets, global_shape=global_shape, with_hash=with_hash and session.world_size > 1
        )
        writer.digest(
            digest,
            site=site,
            name=name,
            part=part,
            step=session.step if step is None else step,
            backward=backward,
            offsets=offsets,
            global_shape=global_shape,
            placement=placement,
        )
        return True


def _what(tensor: torch.Tensor) -> str:
    if tensor.layout == torch.strided and type(tensor) in (torch.Tensor, nn.Parameter) and not tensor.is_meta:
        return "its memory has been freed" if not tensor.is_nested and is_freed(tensor) else "wrapped or quantized"
    return f"{type(tensor).__name__} on {tensor.device.type}, layout {tensor.layout}"
