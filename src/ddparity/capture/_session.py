"""One recording inside one process: its step, its windows, its writer, and how it ends.

A session opens its folder only when training begins (a module is called or an optimizer steps), so that launchers,
loader workers and helpers that import torch leave nothing behind. Nothing here raises into the user's program: the
first fault of the recorder switches it off with one warning and marks the rank PARTIAL.
"""

import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import nn

from ddparity.trace import CaptureConfig, Event, RankFacts, RankWriter, read_json
from ddparity.trace._windows import parse_windows

from . import _facts
from ._batch import Batches
from ._comm import CommWatch
from ._ending import Ending
from ._guard import guarded
from ._memory import MemoryWatch
from ._names import Registry
from ._pieces import Pieces

_FLUSH_SECONDS = 2.0
_AUTOMATIC_WINDOWS = 8

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


class Session:
    """State of the recording; the watches in the sibling modules do the observing."""

    def __init__(self, config: CaptureConfig) -> None:
        self.session = self
        self.config = config
        self.ending = Ending(self)
        self._windows = parse_windows(config.steps)
        self._length = max(stop - start for start, stop in self._windows)
        self.pid = os.getpid()
        self.comm = CommWatch(self)
        self.memory = MemoryWatch(self)
        self.feeder: Callable[[Any], Any] | None = None
        self._begin()

    def _begin(self) -> None:
        self.step = 0
        self.dead = False
        self.worker = False
        self.backwards = 0
        self.registry = Registry()
        self.pieces = Pieces(self)
        self.batches = Batches(self.config.batch_dim, self.pieces)
        self.thread: int | None = None
        self.rank, self.world_size = 0, 1
        self._steps_here = False
        self._writer: RankWriter | None = None
        self._flushed = 0.0
        self._window_open = self._in_window(0)
        self._num_automatic = 0
        self.window = 0
        self._once: set[str] = set()
        self._pending: list[tuple[str, str]] = []
        self._hyperparameters: dict[str, Any] = {}

    # -- life -------------------------------------------------------------------------------------------------------

    def install(self) -> None:
        """Hook into torch; nothing is written before training begins."""
        from ._altered import install_alterations
        from ._bank import install_bank
        from ._drill import install_drill
        from ._forward import ForwardWatch
        from ._frameworks import FrameworkWatch
        from ._gradients import GradientWatch
        from ._loaders import LoaderWatch
        from ._metrics import MetricWatch
        from ._optimizer import OptimizerWatch
        from ._patches import Patches
        from ._synthetic import install_synthetic

        install_alterations(self.config)
        install_drill(self.config)
        install_bank(self)
        install_synthetic(self)
        self.gradients = GradientWatch(self)
        self.forward = ForwardWatch(self)
        self.frameworks = FrameworkWatch(self)
        self.optimizers = OptimizerWatch(self)
        self.patches = Patches(self)
        self.loaders = LoaderWatch(self)
        self.metrics = MetricWatch(self)
        self.forward.install()
        self.optimizers.install()
        self.patches.install()
        self.loaders.install()
        self.metrics.install()
        self.comm.install()
        self.ending.install()

    def forked(self) -> None:
        """Begin anew in a child process: it may become a rank of its own, and must not write into its parent's trace.

        Where the parent trains already, the child is a worker, unless it joins a process group itself.
        """
        was_training, was_dead = self._writer is not None, self.dead
        joined = torch.distributed.is_available() and torch.distributed.is_initialized()
        self._begin()
        self.dead = was_dead or (was_training and joined)
        self.worker = was_training
        self.pid = os.getpid()
        self.comm.forked()
        self.memory.forked()
        self.gradients.detach()
        self.gradients.new_step()
        self.forward.forked()
        self.loaders.forked()
        self.metrics.forked()

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
            for what, reason in self._pending:
                self._writer.event(Event.NOT_RECORDED, step=self.step, name=what, reason=reason)
        return self._writer

    @property
    def opened(self) -> bool:
        """Whether anything has been written."""
        return self._writer is not None

    def may_record(self) -> bool:
        """Whether this process is one to record: neither a loader worker nor another child of a training process."""
        if self.dead or torch.utils.data.get_worker_info() is not None:
            return False
        return not self.worker or (torch.distributed.is_available() and torch.distributed.is_initialized())

    def disable(self, error: BaseException) -> None:
        """Switch the recorder off after a fault of its own, with one warning."""
        if self.dead:
            return
        self.dead = True
        self.comm.disabled()
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
            self.gradients.detach()
            self.optimizers.uninstall()
        except Exception as second:
            print(f"ddparity: the trace could not be marked PARTIAL either: {second}", file=sys.stderr)

    def not_recorded(self, what: str, reason: str) -> None:
        """Name something that cannot be recorded, once."""
        if not self.once(f"{what}: {reason}"):
            return
        if self.opened:
            self.writer.event(Event.NOT_RECORDED, step=self.step, name=what, reason=reason)
        else:  # this process may never train
            self._pending.append((what, reason))

    def once(self, what: str) -> bool:
        """Return True the first time it is asked about ``what``."""
        if what in self._once:
            return False
        self._once.add(what)
        return True

    def on_training_thread(self) -> bool:
        """Whether this may be the thread that trains; replicas and prefetchers in other threads are not recorded."""
        return self.thread is None or threading.get_ident() == self.thread

    def claim_thread(self, module: nn.Module | None = None) -> bool:
        """Take this thread for the one that trains: where an optimizer steps first, or till then a model is called."""
        if module is None:
            if not self._steps_here:
                self._steps_here, self.thread = True, threading.get_ident()
        elif self.thread is None and any(p.requires_grad for p in module.parameters()):
            self.thread = threading.get_ident()
        return self.on_training_thread()

    # -- what the script says itself --------------------------------------------------------------------------------

    def fed(self, batch: Any) -> Any:
        """Take a batch from ``ddparity.feed`` and return it, or this rank's part of what the control was fed."""
        batch = batch if self.feeder is None or self.dead else self.feeder(batch)
        self._note_fed(batch)
        return batch

    @guarded
    def _note_fed(self, batch: Any) -> None:
        if self.may_record():
            self.batches.fed(batch)

    @guarded
    def marked(self, name: str, tensor: Any) -> None:
        """Take a tensor from ``ddparity.mark``."""
        if self.may_record() and isinstance(tensor, torch.Tensor):
            self.forward.outputs.mark(name, tensor)

    @guarded
    def metric(self, name: str, value: float, step: int | None, *, compared: bool) -> None:
        """Take a number from ``ddparity.log_metric`` or an integration; ``step`` is the script's own count."""
        if self.may_record():
            told = {} if step is None else {"own_step": step}
            told |= {} if compared else {"compared": False}
            self.writer.event(Event.METRIC, step=self.step, name=name, value=float(value), **told)

    @guarded
    def hyperparameters(self, values: dict[str, Any]) -> None:
        """Take settings from an integration; before anything is recorded they are kept for when it is."""
        self._hyperparameters |= values
        if self.opened:
            self.writer.facts.hyperparameters |= values
            self.writer.write_facts()

    @property
    def evaluating(self) -> bool:
        """Whether a batch has entered a model without training it since training last went on."""
        return self.metrics.active

    def _open(self) -> RankWriter:
        self.rank, self.world_size, facts = _facts.rank_facts(self.config)
        facts.hyperparameters |= self._hyperparameters
        folder = Path(self.config.trial_dir) / f"rank-{self.rank:05d}"
        self._flushed = time.monotonic()
        if self.comm.ring is None:
            self.comm.open(self.rank, self.world_size)
        self.ending.opened()
        try:
            return RankWriter(folder, facts)
        except FileExistsError:
            if facts.world_size > 1 and _is_of_parent(folder):  # it tried the model before it started the ranks
                folder.rename(folder.with_name(f"{folder.name}.{os.getppid()}"))  # where it follows: follow_folder
                return RankWriter(folder, facts)
            return RankWriter(folder.with_name(f"{folder.name}.{os.getpid()}"), facts)  # a second one of this rank

    def follow_folder(self) -> None:
        """Write on where the folder is now, if a rank that this process started has taken its place."""
        moved = self.writer.folder.with_name(f"{self.writer.folder.name}.{os.getpid()}")
        if moved.is_dir():
            self.writer.folder = moved

    # -- steps and windows ------------------------------------------------------------------------------------------

    def end_step(self) -> None:
        """Close a training step: all trainable parameters that optimizers hold have been updated."""
        self.memory.end_step()
        for batch in self.batches.fed_alone:
            self.writer.samples(step=self.step, batch=batch.number, root="feed", training=True, ids=batch.keys.ids)
        self.writer.event(Event.STEP, step=self.step)
        self.comm.step_ends()
        if self.recording or time.monotonic() - self._flushed > _FLUSH_SECONDS:
            self.flush()
        self.step += 1
        self.backwards = 0
        self.batches.new_step()
        self.forward.new_step()
        self.gradients.new_step()
        self._switch_window()

    def start_over(self, module: nn.Module) -> None:
        """Void what was recorded of models that are gone before a step was complete: a trial run on a copy."""
        self.writer.event(Event.START_OVER, step=self.step)
        self.registry = Registry()
        self.registry.called_as_root(module)
        self.backwards = 0
        self._once.discard(f"random {self.step}")
        self.batches.new_step()
        self.gradients.detach()
        self.gradients.new_step()
        self.forward.models.start_over()
        self.forward.outputs.new_step()

    def flush(self) -> None:
        """Bring everything to disk."""
        self._flushed = time.monotonic()
        self.loaders.settle()
        self.writer.flush()

    def open_window(self, reason: str) -> None:
        """Record the next steps although ``--steps`` did not ask for them, up to some number of times."""
        self._num_automatic += 1
        if self._num_automatic > _AUTOMATIC_WINDOWS:
            self.not_recorded("windows", f"more than {_AUTOMATIC_WINDOWS} that open by themselves")
            return
        self._windows.append((self.step, self.step + self._length))
        if self.opened:
            self.writer.event(Event.WINDOW, step=self.step, name=reason, open=True)
        self._switch_window(announced=True)

    def should_stop(self) -> bool:
        """Whether ``--stop-after-steps`` has been reached."""
        limit = self.config.stop_after_steps
        return limit is not None and self.step >= limit

    def _in_window(self, step: int) -> bool:
        return any(first <= step < stop for first, stop in self._windows)

    def _switch_window(self, *, announced: bool = False) -> None:
        is_open = self._in_window(self.step)
        if is_open == self._window_open:
            return
        self._window_open = is_open
        self.window += is_open
        if is_open and self.opened and not announced:
            self.writer.event(Event.WINDOW, step=self.step, open=True)
        if not is_open:
            self.gradients.detach()


def _is_of_parent(folder: Path) -> bool:
    """Whether the process that started this one has written there, and was no rank among others."""
    facts = read_json(folder / "rank.json", RankFacts)
    return facts.pid == os.getppid() and facts.world_size == 1
