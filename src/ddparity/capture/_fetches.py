"""The first fetch of each epoch, in the training process and in loader workers: which generators did it draw from?

Only generators that were drawn from count: ranks that are seeded alike, as is good practice, are in the same state.
"""

import contextlib
import functools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from torch.utils.data._utils import fetch

from ._generators import generators_of, states
from ._identity import IdentityMap
from ._loader_facts import first_digest

Streams = dict[str, list[str]]
"""Name of a generator -> digest of its state before and after."""


class Observer(Protocol):
    """Who is told of fetches in this process."""

    def before_fetch(self, fetcher: Any) -> Any:
        """Return what ``after_fetch`` is to be given, or None if this is not a first fetch."""

    def after_fetch(self, index: Any, before: Any) -> None:
        """Look again after a first fetch."""


_observer: list[Observer] = []
_installed: list[bool] = []


def observe(observer: Observer) -> None:
    """Tell ``observer``, and nobody else, of the fetches of this process."""
    _observer[:] = [observer]
    if not _installed:
        _installed.append(True)
        for kind in (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher):
            setattr(kind, "fetch", _around(kind.fetch))  # noqa: B010 - a method is replaced on purpose


def _around(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(self: Any, index: Any) -> Any:
        observer = _observer[0] if _observer else None
        before = observer.before_fetch(self) if observer is not None else None
        result = original(self, index)
        if before is not None and observer is not None:
            observer.after_fetch(index, before)
        return result

    return call


class FirstFetches:
    """Takes the state of generators before and after the first fetch of each fetcher."""

    def __init__(self) -> None:
        self._seen: IdentityMap[bool] = IdentityMap()

    def __contains__(self, fetcher: Any) -> bool:
        return fetcher in self._seen

    def before(self, fetcher: Any) -> tuple[dict[str, Any], dict[str, str]] | None:
        """Return the generators within reach and their states, or None if this fetcher has fetched before."""
        if fetcher in self._seen:
            return None
        self._seen.put(fetcher, True)
        held = generators_of(("dataset", fetcher.dataset), ("collate_fn", fetcher.collate_fn))
        return held, states(held)

    def drawn(self, before: tuple[dict[str, Any], dict[str, str]]) -> Streams:
        """Return the generators that were drawn from since."""
        held, first = before
        now = states(held)
        return {name: [first[name], state] for name, state in now.items() if first.get(name) != state}


class WorkerProbe:
    """Runs in a loader worker in place of its ``worker_init_fn``, which it calls first; it can be pickled."""

    def __init__(self, init_fn: Callable[[int], None] | None, folder: str, loader: int, epoch: int) -> None:
        self.init_fn = init_fn
        self.folder = folder
        self.loader = loader
        self.epoch = epoch

    def __call__(self, worker: int) -> None:
        """Initialise the worker as the user wants it, then watch its first fetches."""
        if self.init_fn is not None:
            self.init_fn(worker)
        with contextlib.suppress(Exception):  # never in the way of the user's worker
            observe(_WorkerObserver(self, worker))


class _WorkerObserver:
    def __init__(self, probe: WorkerProbe, worker: int) -> None:
        self._probe = probe
        self._worker = worker
        self._epoch = probe.epoch
        self._fetches = FirstFetches()

    def before_fetch(self, fetcher: Any) -> Any:
        with contextlib.suppress(Exception):
            return self._fetches.before(fetcher)
        return None

    def after_fetch(self, index: Any, before: Any) -> None:
        with contextlib.suppress(Exception):
            where = {"loader": self._probe.loader, "epoch": self._epoch, "worker": self._worker}
            self._epoch += 1
            streams = self._fetches.drawn(before)
            if not streams:
                return
            line = json.dumps({**where, "first": first_digest(index), "streams": streams})
            folder = Path(self._probe.folder)
            folder.mkdir(parents=True, exist_ok=True)
            with (folder / f"{self._probe.loader}-{self._worker}-{os.getpid()}.jsonl").open("a") as file:
                file.write(f"{line}\n")
