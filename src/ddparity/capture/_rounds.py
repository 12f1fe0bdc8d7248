"""When a training step is over: after one ``step()`` with one optimizer, after several with a GAN's."""

from collections.abc import Iterable, Iterator

import torch
from torch.optim import Optimizer

from ._identity import IdentityMap


class Rounds:
    """A training step is a round in which all trainable parameters that live optimizers hold have been updated.

    An optimizer that steps twice before the others have stepped at all ends the round too, and those others are left
    out until they step.
    """

    def __init__(self) -> None:
        self._known: IdentityMap[str] = IdentityMap()
        self._classes: dict[str, int] = {}
        self._dormant: IdentityMap[bool] = IdentityMap()
        self._stepped: IdentityMap[bool] = IdentityMap()

    def created(self, optimizer: Optimizer) -> None:
        """Wait for this optimizer too."""
        if optimizer not in self._known:
            name = type(optimizer).__name__
            number = self._classes[name] = self._classes.get(name, 0) + 1
            self._known.put(optimizer, name if number == 1 else f"{name}#{number}")

    def labelled(self) -> Iterator[tuple[str, Optimizer]]:
        """Yield the living optimizers with their labels: the class, numbered from the second of a class on."""
        for optimizer in self._known.things():
            yield self._known.get(optimizer) or "", optimizer

    def begin(self) -> None:
        """Begin a new round."""
        self._stepped.clear()

    def inner(self, optimizer: Optimizer) -> None:
        """Wait for this optimizer no more: another one steps it."""
        self._known.remove(optimizer)

    def before(self, optimizer: Optimizer) -> bool:
        """Note that an optimizer is about to step; return whether the round before has to be closed first."""
        self.created(optimizer)
        self._dormant.remove(optimizer)
        if optimizer not in self._stepped:
            return False
        self._leave_out()
        return True

    def after(self, optimizer: Optimizer) -> bool:
        """Note that an optimizer has stepped; return whether the round is over."""
        self._stepped.put(optimizer, True)
        held: set[int] = set()
        for known in self._known.things():
            if known not in self._dormant:
                held |= {id(p) for p in _trainable(known)}
        return held <= self._updated()

    def is_over_for(self, parameters: Iterable[torch.Tensor]) -> bool:
        """Return whether all these parameters have been updated in this round, and leave out who has not stepped."""
        if not self._stepped:
            return False
        mine = {id(p) for p in parameters if p.requires_grad}
        if not mine or not mine <= self._updated():
            return False
        self._leave_out()
        return True

    def _updated(self) -> set[int]:
        return {id(p) for optimizer in self._stepped.things() for p in _trainable(optimizer)}

    def _leave_out(self) -> None:
        for known in self._known.things():
            if known not in self._stepped:
                self._dormant.put(known, True)


def _trainable(optimizer: Optimizer) -> list[torch.Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
