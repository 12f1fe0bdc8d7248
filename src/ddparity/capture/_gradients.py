"""Parameter gradients: the local ones before synchronisation, and what the optimizer is given."""

import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch

from ddparity.digest import digest_tensor
from ddparity.trace import Event, Site

from ._batch import is_plain
from ._placement import locate
from ._session import guarded

if TYPE_CHECKING:
    from ._session import Session


class GradientWatch:
    """Hooks on leaf parameters (they fire before DDP's reduction) and readings of ``.grad``."""

    def __init__(self, session: "Session") -> None:
        self.session = session
        self._handles: dict[int, tuple[weakref.ref, Any]] = {}
        self._synced: set[int] = set()
        self._order: list[str] = []
        self._modified = False

    def attach(self, parameters: Iterable[torch.Tensor]) -> None:
        """Watch the gradients of parameters that require one."""
        for parameter in parameters:
            if not parameter.requires_grad or not parameter.is_leaf:
                continue
            entry = self._handles.get(id(parameter))
            if entry is not None and entry[0]() is parameter:
                continue
            name = self.session.registry.name(parameter) or "?"
            handle = parameter.register_hook(lambda gradient, name=name: self._local(gradient, name))
            self._handles[id(parameter)] = (weakref.ref(parameter), handle)

    def detach(self) -> None:
        """Remove every hook: a closed window costs nothing in backward."""
        for _, handle in self._handles.values():
            handle.remove()
        self._handles.clear()

    def new_step(self) -> None:
        """Forget what was read in the step before."""
        self._synced.clear()
        self._order.clear()
        self._modified = False

    @guarded
    def _local(self, gradient: torch.Tensor, name: str) -> None:
        session = self.session
        if not session.recording:
            return
        self._order.append(name)
        if session.world_size > 1:  # alone, the local gradient is what the optimizer is given
            self.record(gradient.detach(), Site.LOCAL_GRADIENT, name, backward=session.backwards)

    @guarded
    def sync(self, parameters: Iterable[torch.Tensor]) -> None:
        """Record the gradients that are about to be clipped, unscaled or applied, once a step."""
        session = self.session
        if not session.recording:
            return
        if self._order and session.once(f"order {session.step}"):
            session.writer.event(Event.GRADIENT_ORDER, step=session.step, order=list(dict.fromkeys(self._order)))
        for parameter in parameters:
            if parameter.grad is not None and id(parameter) not in self._synced:
                self._synced.add(id(parameter))
                name = session.registry.name(parameter) or "?"
                self.record(parameter.grad.detach(), Site.SYNCED_GRADIENT, name, with_hash=True)

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
    ) -> None:
        """Digest a parameter-like tensor by position; the hash only where there are replicas to compare."""
        session = self.session
        if tensor.layout == torch.sparse_coo:
            tensor = tensor.coalesce().to_dense()
        local, offsets, global_shape, placement = locate(tensor)
        if not is_plain(local):
            session.not_recorded(name, f"{site}: layout {local.layout}, {type(local).__name__}")
            return
        digest = digest_tensor(
            local, offsets=offsets, global_shape=global_shape, with_hash=with_hash and session.world_size > 1
        )
        session.writer.digest(
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
