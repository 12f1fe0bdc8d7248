"""How a recording ends: at the interpreter's exit, by an exception, in a forked child."""

import atexit
import functools
import os
import signal
import sys
import time
from multiprocessing import parent_process
from multiprocessing import util as multiprocessing_util
from typing import TYPE_CHECKING, Any

from ddparity.trace import RankStatus

from . import _facts
from ._guard import guarded

if TYPE_CHECKING:
    from ._session import Session

_DRILL_CODE = 23
"""Exit code of a rank that a drill ends."""
_LAUNCHERS = ("torch.distributed.elastic.", "torch.multiprocessing.")
"""Modules of the errors by which a launcher says that a process it started has failed."""


class Ending:
    """Writes the mark by which a rank that ended is told from one that was killed."""

    def __init__(self, session: "Session") -> None:
        self.session = session
        self._done = False
        self.exit_code: Any = None

    def install(self) -> None:
        """Hook into the ways in which a process ends."""
        atexit.register(self._at_exit)
        os.register_at_fork(after_in_child=self._forked)
        self._hook_exceptions()
        self._hook_exit()

    def opened(self) -> None:
        """Care for a child of ``multiprocessing``: forked ones leave without the interpreter's exit handlers."""
        if parent_process() is not None:
            multiprocessing_util.Finalize(None, self._at_exit, exitpriority=-100)

    def interrupt(self) -> None:
        """End this process, or do to it what a drill asks for, where the trial is to be interrupted here."""
        session = self.session
        at, rank, how = session.config.interrupt_at, session.config.interrupt_rank, session.config.interrupt_how
        if at is None or session.step < at:
            return
        if rank is None:
            raise SystemExit(0)
        if rank != session.rank:
            return
        session.flush()
        if how == "exit":
            raise SystemExit(_DRILL_CODE)
        if how == "stall":
            self._stall()
        os.kill(os.getpid(), signal.SIGSTOP if how == "stop" else signal.SIGKILL)

    def stall_loader(self) -> None:
        """Stay in the loader, as storage that does not answer would, where the trial is to be interrupted so."""
        config, session = self.session.config, self.session
        due = config.interrupt_at is not None and session.step >= config.interrupt_at
        if due and config.interrupt_how == "stall" and config.interrupt_rank == session.rank and session.opened:
            session.flush()
            self._stall()

    @staticmethod
    def _stall() -> None:
        while True:
            time.sleep(1.0)

    def _forked(self) -> None:
        self._done = False
        self.session.forked()

    def _hook_exceptions(self) -> None:
        before = sys.excepthook

        @functools.wraps(before)
        def excepthook(kind: type[BaseException], error: BaseException, trace: Any) -> None:
            self._raised(error)
            before(kind, error, trace)

        sys.excepthook = excepthook

    def _hook_exit(self) -> None:
        """Learn of ``sys.exit`` with an error, and of the error being handled: so end the children of ``mp.spawn``."""
        original = sys.exit

        @functools.wraps(original)
        def leave(code: Any = None, /) -> Any:
            self.exit_code = code
            self.session.comm.leaving()
            if code not in (None, 0) and isinstance(error := sys.exc_info()[1], Exception):
                self._raised(error)
            original(code)

        sys.exit = leave

    def _raised(self, error: BaseException) -> None:
        self.session.comm.raised(error)  # also where the recorder is off: it may have run out of memory itself
        self._failed(error)

    @guarded
    def _failed(self, error: BaseException) -> None:
        session = self.session
        if not session.may_record() or type(error).__module__.startswith(_LAUNCHERS):
            return
        facts = session.writer.facts
        facts.status, facts.error_type = RankStatus.RAISED, type(error).__name__
        facts.error_at = _facts.user_stack_of(error)
        session.flush()
        session.follow_folder()
        session.writer.write_facts()

    def _at_exit(self) -> None:
        session = self.session
        if self._done or not session.opened:
            return
        self._done = True
        facts = session.writer.facts
        if facts.status is RankStatus.RUNNING:
            self._last_error()
        if not session.dead:
            self._last_words()
        facts.ended = time.time()
        if facts.status is RankStatus.RUNNING:
            facts.status = RankStatus.FINISHED
        session.follow_folder()
        session.writer.close()
        session.dead = True

    @guarded
    def _last_error(self) -> None:
        """Find the error that ended the program where another's excepthook has taken the place of ours."""
        facts = self.session.writer.facts
        error = getattr(sys, "last_value", None)
        if isinstance(error, BaseException) and not isinstance(error, SystemExit):
            self._raised(error)
        elif self.exit_code not in (None, 0):
            facts.status, facts.error_type = RankStatus.RAISED, f"SystemExit({self.exit_code!r:.40})"

    @guarded
    def _last_words(self) -> None:
        self.session.forward.models.buffers_of_last_step()
        self.session.pieces.close()
        self.session.loaders.bring()
        self.session.loaders.settle()
        self.session.metrics.close()
        self.session.memory.close()
        _facts.refresh(self.session.writer.facts)
