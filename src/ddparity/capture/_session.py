"""One recording inside one process: its step, its windows, its writer, and how it ends.

A session opens its folder only when training begins (a module is called or an optimizer steps), so that launchers,
loader workers and helpers that import torch leave nothing behind. Nothing here raises into the user's program: the
first fault of the recorder switches it off with one warning and marks the rank PARTIAL.
"""

import atexit
import functools
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import msgspec
import torch

from ddparity.trace import CaptureConfig, Event, RankStatus, RankWriter
from ddparity.trace._windows import parse_windows

from . import _facts
from ._batch import Batches
from ._names import Registry

P = ParamSpec("P")
R = TypeVar("R")

_FLUSH_SECONDS = 2.0

_session: "Session | None" = None


def current() -> "Session | None":
    """Return this process's session if it records."""
    return _session if _session is not None and not _session.dead else None


def start(config: str) -> None:
    """Begin to observe this process; ``config`` is a ``CaptureConfig`` as JSON. A second call does nothing."""
    global _session
    if _session is not None:
        return
    _session = Session(msgspec.json.decode(config, type=CaptureConfig))
    _session.install()


class Watch(Protocol):
    """A part of the recorder."""

    session: "Session"


W = TypeVar("W", bound=Watch)


def guarded(method: Callable[Concatenate[W, P], R]) -> Callable[Concatenate[W, P], R | None]:
    """Keep a fault of the recorder away from the user's program: it disables the recorder instead."""

    @functools.wraps(method)
    def call(self: W, *args: P.args, **kwargs: P.kwargs) -> R | None:
        if self.session.dead:
            return None
        try:
            return method(self, *args, **kwargs)
        except Exception as error:
            self.session.disable(error)
            return None

    return call


def in_backward() -> bool:
    """Whether the autograd engine is running in this thread: what runs now is recomputation, not the forward."""
    return torch._C._current_graph_task_id() != -1


class Session:
    """State of the recording; the watches in the sibling modules do the observing."""

    def __init__(self, config: CaptureConfig) -> None:
        self.session = self
        self.config = config
        self.step = 0
        self.dead = False
        self.backwards = 0
        self.registry = Registry()
        self.batches = Batches(config.batch_dim)
        self.thread = threading.get_ident()
        self.rank, self.world_size = 0, 1
        self._writer: RankWriter | None = None
        self._windows = parse_windows(config.steps)
        self._length = max(stop - start for start, stop in self._windows)
        self._pid = os.getpid()
        self._flushed = 0.0
        self._window_open = False
        self._once: set[str] = set()
        self._ended = False

    # -- life -------------------------------------------------------------------------------------------------------

    def install(self) -> None:
        """Hook into torch; nothing is written before training begins."""
        from ._forward import ForwardWatch
        from ._gradients import GradientWatch
        from ._optimizer import OptimizerWatch
        from ._patches import Patches

        self.gradients = GradientWatch(self)
        self.forward = ForwardWatch(self)
        self.optimizers = OptimizerWatch(self)
        self.patches = Patches(self)
        self.optimizers.install()
        self.patches.install()
        self._switch_window()
        atexit.register(self._at_exit)
        self._hook_exceptions()
        os.register_at_fork(after_in_child=self._forked)

    @property
    def recording(self) -> bool:
        """Whether tensors of this step are recorded."""
        return self._window_open and not self.dead

    @property
    def last_of_window(self) -> bool:
        """Whether the next step is not recorded any more."""
        return not self._in_window(self.step + 1)

    @property
    def first_of_window(self) -> bool:
        """Whether the step before was not recorded."""
        return self.step == 0 or not self._in_window(self.step - 1)

    @property
    def detailed(self) -> bool:
        """Whether activations and their gradients are recorded."""
        return self.config.level == "activations"

    @property
    def writer(self) -> RankWriter:
        """The rank's writer, opened on first use."""
        if self._writer is None:
            self._writer = self._open()
        return self._writer

    @property
    def opened(self) -> bool:
        """Whether anything has been written."""
        return self._writer is not None

    def may_record(self) -> bool:
        """Whether this process is one to record: not a loader worker."""
        return not self.dead and torch.utils.data.get_worker_info() is None

    def disable(self, error: BaseException) -> None:
        """Switch the recorder off after a fault of its own, with one warning."""
        if self.dead:
            return
        self.dead = True
        at = _facts.stack_of(error)[-1:]
        reason = f"the recorder failed: {type(error).__name__}: {error} ({', '.join(at)})"
        print(
            f"ddparity: {reason}. Training goes on unrecorded, the trial is PARTIAL. "
            "Please report this with the line above.",
            file=sys.stderr,
        )
        try:
            self.writer.facts.partial.append(reason)
            self.writer.event(Event.DISABLED, step=self.step, name=type(error).__name__)
            self.writer.flush()
            self.writer.write_facts()
        except Exception as second:
            print(f"ddparity: the trace could not be marked PARTIAL either: {second}", file=sys.stderr)

    def not_recorded(self, what: str, reason: str) -> None:
        """Name something that cannot be recorded, once."""
        if what not in self._once:
            self._once.add(what)
            self.writer.event(Event.NOT_RECORDED, step=self.step, name=what, reason=reason)

    def once(self, what: str) -> bool:
        """Return True the first time it is asked about ``what``."""
        if what in self._once:
            return False
        self._once.add(what)
        return True

    def on_training_thread(self) -> bool:
        """Whether this is the thread that trains; replicas and prefetchers in other threads are not recorded."""
        return threading.get_ident() == self.thread

    # -- what the script says itself --------------------------------------------------------------------------------

    @guarded
    def fed(self, batch: Any) -> None:
        """Take a batch from ``ddparity.feed``."""
        if self.may_record():
            found, new = self.batches.enter(batch, {})
            if found is not None and new:
                self.writer.samples(
                    step=self.step, batch=found.number, root="feed", training=True, ids=found.keys.ids
                )

    @guarded
    def marked(self, name: str, tensor: Any) -> None:
        """Take a tensor from ``ddparity.mark``."""
        if self.may_record() and isinstance(tensor, torch.Tensor):
            self.forward.mark(name, tensor)

    @guarded
    def metric(self, name: str, value: float) -> None:
        """Take a number from ``ddparity.log_metric``."""
        if self.may_record():
            self.writer.event(Event.METRIC, step=self.step, name=name, value=float(value))

    def _open(self) -> RankWriter:
        self.rank, self.world_size, facts = _facts.rank_facts(self.config)
        folder = Path(self.config.trial_dir) / f"rank-{self.rank:05d}"
        if folder.exists():
            folder = folder.with_name(f"{folder.name}.{os.getpid()}")  # a second process of this rank
        self._flushed = time.monotonic()
        return RankWriter(folder, facts)

    # -- steps and windows ------------------------------------------------------------------------------------------

    def end_step(self) -> None:
        """Close a training step: all trainable parameters that optimizers hold have been updated."""
        self.writer.event(Event.STEP, step=self.step)
        if self.recording or time.monotonic() - self._flushed > _FLUSH_SECONDS:
            self.flush()
        self.step += 1
        self.backwards = 0
        self.batches.new_step()
        self.forward.new_step()
        self.gradients.new_step()
        self._switch_window()

    def flush(self) -> None:
        """Bring everything to disk."""
        self._flushed = time.monotonic()
        self.writer.flush()

    def open_window(self, reason: str) -> None:
        """Record the next steps although ``--steps`` did not ask for them."""
        self._windows.append((self.step, self.step + self._length))
        if self.opened:
            self.writer.event(Event.WINDOW, step=self.step, name=reason, open=True)
        self._switch_window()

    def should_stop(self) -> bool:
        """Whether ``--stop-after-steps`` has been reached."""
        limit = self.config.stop_after_steps
        return limit is not None and self.step >= limit

    def _in_window(self, step: int) -> bool:
        return any(first <= step < stop for first, stop in self._windows)

    def _switch_window(self) -> None:
        is_open = self._in_window(self.step)
        if is_open == self._window_open and self.forward.installed:
            return
        self._window_open = is_open
        self.forward.install(detailed=is_open)
        if is_open and self.opened:
            self.writer.event(Event.WINDOW, step=self.step, open=True)
        if not is_open:
            self.gradients.detach()

    # -- the end ----------------------------------------------------------------------------------------------------

    def _hook_exceptions(self) -> None:
        before = sys.excepthook

        @functools.wraps(before)
        def excepthook(kind: type[BaseException], error: BaseException, trace: Any) -> None:
            self._failed(error)
            before(kind, error, trace)

        sys.excepthook = excepthook

    @guarded
    def _failed(self, error: BaseException) -> None:
        if not self.opened and not self.may_record():
            return
        facts = self.writer.facts
        facts.status, facts.error_type = RankStatus.RAISED, type(error).__name__
        facts.error_at = _facts.stack_of(error)
        self.flush()
        self.writer.write_facts()

    def _at_exit(self) -> None:
        if self._ended or self._writer is None or os.getpid() != self._pid:
            return
        self._ended = True
        if not self.dead:
            self._last_words()
        facts = self._writer.facts
        facts.ended = time.time()
        if facts.status is RankStatus.RUNNING:
            facts.status = RankStatus.FINISHED
        self._writer.close()
        self.dead = True

    @guarded
    def _last_words(self) -> None:
        self.forward.buffers_of_last_step()
        _facts.refresh(self.writer.facts)

    def _forked(self) -> None:
        """A child of a process that already trains is a worker; one of a mere launcher may become a rank."""
        if self._writer is not None:
            self.dead = True
        self._writer = None
        self._pid = os.getpid()
        self.thread = threading.get_ident()


__all__ = ["Session", "current", "guarded", "in_backward", "start"]
