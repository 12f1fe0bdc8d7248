"""Ending a run that is made for its data alone (``ddparity data``): after some passes, or with the loaders run out."""

import gc
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader

if TYPE_CHECKING:
    from ._session import Session

_MAX_OTHERS = 16


class LoaderLimit:
    """Counts passes over training data; inactive unless the trial asks for it."""

    def __init__(self, session: "Session") -> None:
        self._epochs = session.config.loader_epochs
        self.is_dry = session.config.loaders_only
        self._passes = 0

    @property
    def asked(self) -> bool:
        """Whether the run is to be ended at all."""
        return self._epochs is not None

    def passed(self, *, training: bool) -> None:
        """Count a loader that came to its end."""
        self._passes += training

    def is_reached(self) -> bool:
        """Whether the training data has been passed often enough."""
        return self._epochs is not None and self._passes >= self._epochs

    def run_out(
        self,
        iterator: Any,
        original: Callable[[Any], Any],
        delivered: Callable[[Any, int], None],
        is_known: Callable[[Any], bool],
    ) -> None:
        """Take all that is left of an iterator, then go through loaders that are not known yet."""
        while True:
            start = time.perf_counter_ns()
            try:
                batch = original(iterator)
            except StopIteration:
                break
            delivered(batch, time.perf_counter_ns() - start)
        self.is_dry = False
        others = [each for each in gc.get_objects() if issubclass(type(each), DataLoader)]
        for loader in [each for each in others if not is_known(each)][:_MAX_OTHERS]:
            for _ in loader:
                continue

    def end(self) -> None:
        """Leave the user's program as if it had come to its end."""
        raise SystemExit(0)
