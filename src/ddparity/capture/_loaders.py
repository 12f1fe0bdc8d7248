"""DataLoaders: which samples each iteration delivered, when, and how long training waited for them.

Map-style datasets are known by the sampler's indices, streams by the content of what came out. Nothing of a sample is
kept. What is delivered before training begins waits in memory until the rank's trace is open.
"""

import functools
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from torch.utils.data import BatchSampler, dataloader

from ddparity.trace import Event

from . import _facts
from ._fetches import FirstFetches, WorkerProbe, observe
from ._guard import guarded
from ._identity import IdentityMap
from ._loader_facts import content_ids, first_content, first_digest, index_ids, loader_facts, num_labels, root_of
from ._loader_limit import LoaderLimit

if TYPE_CHECKING:
    from ._session import Session

_MAX_EARLY = 200_000
_TOGETHER = 64
"""Batches whose indices are looked at together."""
_CONTENTS = 8
"""Batches an epoch of whose first sample the content is taken: it tells whether an index means the same everywhere."""


@dataclass
class Iteration:
    """One pass over a loader."""

    loader: int
    epoch: int
    map_style: bool
    maps: list[Sequence[int]]
    drawn: deque[Any] = field(default_factory=deque)
    number: int = 0
    has_labels: bool = True
    fresh: bool = False
    """Whether the sampler makes a new list for each batch, so that it can be looked at later."""

    @property
    def settled(self) -> bool:
        """Whether nothing but the indices of its batches is wanted any more."""
        return self.fresh and not self.has_labels and self.number >= _CONTENTS


class LoaderWatch:
    """Wraps what every iterator of a DataLoader inherits; subclasses elsewhere (torchdata) inherit it too."""

    def __init__(self, session: "Session") -> None:
        self.session = session
        self.stalls = session.config.interrupt_how == "stall"
        self.forked()

    def forked(self) -> None:
        """Begin anew in a child process."""
        self._numbers: IdentityMap[int] = IdentityMap()
        self._roots: IdentityMap[int] = IdentityMap()
        self._epochs: dict[int, int] = {}
        self._iterations: IdentityMap[Iteration] = IdentityMap()
        self._init_fns: IdentityMap[Any] = IdentityMap()
        self._early: list[Callable[[], None]] = []
        self._uses: set[tuple[int, bool]] = set()
        self._fetches = FirstFetches()
        self._waiting: list[tuple[Any, ...]] = []
        self._last: Iteration | None = None
        self._running: Iteration | None = None

    def install(self) -> None:
        """Put the wrappers in place."""
        base = dataloader._BaseDataLoaderIter
        self.limit = LoaderLimit(self.session)
        _wrap(base, "__init__", after=self._begun)
        _wrap(base, "_reset", before=self._reset)
        _wrap(base, "_next_index", after=self._drawn)
        setattr(base, "__next__", self._timed(base.__next__))  # noqa: B010 - a method is replaced on purpose
        observe(self)

    def used(self, *, training: bool) -> None:
        """Note that what was delivered last has entered a model."""
        last = self._last
        if training and self.limit.is_reached():
            self.limit.end()
        if last is not None and (last.loader, training) not in self._uses:
            self._uses.add((last.loader, training))
            self.bring()
            self.session.writer.event(
                Event.LOADER_USE, step=self.session.step, name=str(last.loader), training=training
            )

    def bring(self) -> None:
        """Write what came before the trace was open."""
        early = list(self._early)
        self._early.clear()
        for write in early:
            write()

    # -- an iterator's life -------------------------------------------------------------------------------------------

    @guarded
    def _begun(self, _: None, iterator: Any, loader: Any) -> None:
        if not self._observes():
            return
        map_style = iterator._dataset_kind == dataloader._DatasetKind.Map
        number = self._number(loader)
        iteration = Iteration(number, 0, map_style, root_of(loader.dataset)[1])
        iteration.fresh = map_style and type(iterator._index_sampler) is BatchSampler
        self._iterations.put(iterator, iteration)
        self._new_epoch(iteration, loader)
        if iterator._num_workers > 0 and not isinstance(loader.worker_init_fn, WorkerProbe):
            self._init_fns.put(iterator, (loader.worker_init_fn,))
            loader.worker_init_fn = WorkerProbe(loader.worker_init_fn, self._folder(), number, iteration.epoch)

    @guarded
    def _reset(self, iterator: Any, loader: Any, first_iter: bool = False) -> None:
        """Give the loader its own ``worker_init_fn`` back, or begin the next epoch of persistent workers."""
        given = self._init_fns.get(iterator)
        if given is not None:
            loader.worker_init_fn = given[0]
            self._init_fns.remove(iterator)
        iteration = self._iterations.get(iterator)
        if iteration is not None and not first_iter:
            iteration.drawn.clear()
            self._new_epoch(iteration, loader)

    def _drawn(self, index: Any, iterator: Any) -> None:
        iteration = self._iterations.get(iterator)
        if iteration is not None and iteration.map_style:
            iteration.drawn.append(index)

    def _timed(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        @functools.wraps(original)
        def call(iterator: Any) -> Any:
            iteration = self._iterations.get(iterator)
            if iteration is None:
                return original(iterator)
            if self.limit.asked:
                self._limit(iteration, iterator, original)
            if self.stalls:
                self.session.ending.stall_loader()
            self._running, before = iteration, self._running
            start = time.perf_counter_ns()
            try:
                batch = original(iterator)
            except StopIteration:
                self._exhausted(iteration)
                raise
            finally:
                self._running = before
            wait_ns = time.perf_counter_ns() - start
            if iteration.settled and self._opened_for(iteration):
                self._again(iteration, wait_ns)
            else:
                self._delivered(iteration, batch, wait_ns)
            return batch

        return call

    def _limit(self, iteration: Iteration, iterator: Any, original: Callable[[Any], Any]) -> None:
        """End the run where ``ddparity data`` has seen enough; nothing of this happens while a training is recorded."""
        training = (iteration.loader, True) in self._uses
        if training and self.limit.is_dry and iteration.number == 1:
            taken = functools.partial(self._delivered, iteration)
            self.limit.run_out(iterator, original, taken, self._numbers.__contains__)
            self._exhausted(iteration)
            self.limit.end()
        if training and iteration.number == 0 and self.limit.is_reached():
            self.limit.end()

    def _opened_for(self, iteration: Iteration) -> bool:
        session = self.session
        return bool(iteration.drawn) and session.opened and not self._early and session.may_record()

    def _again(self, iteration: Iteration, wait_ns: int) -> None:
        """Write a batch of which only the indices are wanted: no tensor is looked at, so nothing has to be guarded."""
        row = (time.time_ns(), self.session.step, iteration.loader, iteration.epoch, iteration.number, wait_ns, -1, 0)
        self._waiting.append((row, iteration.drawn.popleft(), iteration.maps))
        iteration.number += 1
        self._last = iteration
        if len(self._waiting) >= _TOGETHER:
            self.settle()

    @guarded
    def settle(self) -> None:
        """Write the batches whose indices wait to be looked at together: one by one they cost three times as much."""
        waiting, self._waiting = self._waiting, self._waiting[:0]
        for row, index, maps in waiting:
            self.session.writer.load((*row, index_ids(index, maps)))

    @guarded
    def _delivered(self, iteration: Iteration, batch: Any, wait_ns: int) -> None:
        if not self._observes():
            return
        if iteration.map_style:
            ids = index_ids(iteration.drawn.popleft(), iteration.maps) if iteration.drawn else _NONE
            content = first_content(batch) if iteration.number < _CONTENTS else 0
        else:
            ids, content = content_ids(batch), 0
        labels = num_labels(batch) if iteration.has_labels else -1
        iteration.has_labels = labels >= 0  # a loader whose batches have no labels is not asked again
        now, step, number = time.time_ns(), self.session.step, iteration.number
        row = (now, step, iteration.loader, iteration.epoch, number, wait_ns, labels, content, ids)
        iteration.number += 1
        self._last = iteration
        if self.session.opened and not self._early:
            self.session.writer.load(row)
        else:
            self._write(lambda: self.session.writer.load(row))

    @guarded
    def _exhausted(self, iteration: Iteration) -> None:
        if self._observes():
            self._event(Event.LOADER_END, iteration, batches=iteration.number)
            self.limit.passed(training=(iteration.loader, True) in self._uses)

    # -- the first fetch of an epoch in this process ------------------------------------------------------------------

    def before_fetch(self, fetcher: Any) -> Any:
        """Take the states of generators before a first fetch."""
        return None if self._running is None or fetcher in self._fetches else self._before_first(fetcher)

    @guarded
    def _before_first(self, fetcher: Any) -> Any:
        return self._fetches.before(fetcher) if self._observes() else None

    @guarded
    def after_fetch(self, index: Any, before: Any) -> None:
        """Write which generators the first fetch drew from."""
        if self._running is not None:
            streams, first = self._fetches.drawn(before), first_digest(index)
            self._event(Event.STREAMS, self._running, worker=-1, first=first, streams=streams)

    # -- what is written ----------------------------------------------------------------------------------------------

    def _observes(self) -> bool:
        return self.session.may_record()

    def _number(self, loader: Any) -> int:
        number = self._numbers.get(loader)
        if number is None:
            number = len(self._epochs)
            self._numbers.put(loader, number)
            self._epochs[number] = 0
        return number

    def _root_number(self, root: Any) -> int:
        try:
            number = self._roots.get(root)
            if number is None:
                number = sum(1 for _ in self._roots.values())
                self._roots.put(root, number)
        except TypeError:  # a list or range as dataset: cannot be referred to weakly
            return -1
        return number

    def _new_epoch(self, iteration: Iteration, loader: Any) -> None:
        iteration.epoch, iteration.number = self._epochs[iteration.loader], 0
        self._epochs[iteration.loader] += 1
        root = self._root_number(root_of(loader.dataset)[0])
        facts = loader_facts(loader, map_style=iteration.map_style)
        self._event(Event.LOADER, iteration, root_number=root, **facts)

    def _event(self, kind: Event, iteration: Iteration, **data: Any) -> None:
        step, loader, epoch = self.session.step, iteration.loader, iteration.epoch
        self._write(lambda: self.session.writer.event(kind, step=step, name=str(loader), epoch=epoch, **data))

    def _write(self, write: Callable[[], None]) -> None:
        if self.session.opened:
            if self._early:
                self.bring()
            write()
        elif len(self._early) < _MAX_EARLY:
            self._early.append(write)

    def _folder(self) -> str:
        rank = _facts.rank_of_process()
        return f"{self.session.config.trial_dir}/workers/rank-{rank:05d}"


_NONE = np.zeros(0, dtype=np.uint64)


def _wrap(
    owner: Any, name: str, *, before: Callable[..., Any] | None = None, after: Callable[..., Any] | None = None
) -> None:
    original = getattr(owner, name)

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if before is not None:
            before(*args, **kwargs)
        result = original(*args, **kwargs)
        if after is not None:
            after(result, *args, **kwargs)
        return result

    setattr(owner, name, call)
