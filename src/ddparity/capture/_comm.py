"""What this process asks of the others: each call, who waits for it, and how the process ends."""

import atexit
import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

import msgspec
import torch

from ddparity.trace._ring_format import DONE, WAITED, CallFlag, Field, Kind, ProcessStatus

from . import _facts
from ._errors_of import describe_error
from ._groups import GroupPatches
from ._guard import guarded
from ._ring import Ring
from ._stacks import Stacks
from ._watchdog import Watchdog

if TYPE_CHECKING:
    from ._session import Session

_now = time.monotonic_ns
_WAITED, _OVERWRITTEN = int(CallFlag.WAITED), int(CallFlag.OVERWRITTEN)


class CommWatch:
    """The ledger of this process; without a process group it holds the marks of the training step alone."""

    def __init__(self, session: "Session") -> None:
        self.session = session
        self.groups = GroupPatches(self)
        self.watchdog = Watchdog(self)
        self._begin()

    def _begin(self) -> None:
        self.ring: Ring | None = None
        self.pending: dict[int, Any] = {}
        self._natives: list[tuple[int, int]] = []
        self.stacks = Stacks()
        self.names: dict[int, int] | None = None
        self._begun: dict[Kind, int] = {}
        self.in_step = False
        self.in_backward = False
        self._step_began = 0

    def install(self) -> None:
        """Put the patches in place; nothing is written before a process group or a training begins."""
        self.groups.install()
        atexit.register(self._at_exit)
        original = os._exit

        def leave(code: int) -> None:
            ring = self.ring
            if ring is not None and ring.pid == os.getpid():
                self.leaving()
                ring.end(ProcessStatus.EXITED, code if isinstance(code, int) else 1)
            original(code)

        os._exit = leave  # type: ignore[assignment]

    def forked(self) -> None:
        """Begin anew in a child: the mapping it inherits is its parent's."""
        self._begin()
        self.watchdog.forked()

    def open(self, rank: int, world_size: int) -> Ring:
        """Return the ring, made on first use."""
        if self.ring is None:
            self.ring = Ring(Path(self.session.config.trial_dir), rank=rank, world_size=world_size)
            self.watchdog.start(self.ring)
        elif (rank, world_size) != (self.ring.get(Field.RANK), self.ring.get(Field.WORLD_SIZE)):
            self.ring.set(Field.RANK, rank)
            self.ring.set(Field.WORLD_SIZE, world_size)
        return self.ring

    @property
    def step(self) -> int:
        """The training step that calls belong to: those after an update belong to its step, until the next begins."""
        return self.session.step if self.in_step else self.session.step - 1

    # -- calls --------------------------------------------------------------------------------------------------------

    def name_of(self, tensor: torch.Tensor) -> int:
        """Return the number of the parameter whose value or gradient a call is about; 0 if it is no one's."""
        names = self.names
        if names is None:
            names = {}
            self.names = names
            ring = self.ring
            for top in self.session.registry.living_tops() if ring is not None else ():
                for parameter in top.parameters():
                    name = self.session.registry.name(parameter)
                    if name is not None and ring is not None:
                        number = ring.string(name)
                        names.update((t.data_ptr(), number) for t in (parameter, parameter.grad) if _is_exact(t))
        return names.get(tensor.data_ptr(), 0)

    def waited(self, at: int, serial: int, begin: int, *, overwritten: bool) -> None:
        """Note that somebody waited for a call and it completed."""
        self.pending.pop(serial, None)
        ring = self.ring
        if ring is not None and ring.serial(at) == serial:
            now = _now()
            ring.stamp(at, WAITED, begin)
            ring.stamp(at, DONE, now)
            ring.flag(at, _WAITED | (_OVERWRITTEN if overwritten else 0))
            ring.set(Field.ACTIVE, now)

    def completed(self, at: int, serial: int) -> None:
        """Note that a call without a handle returned."""
        self.waited(at, serial, 0, overwritten=False)

    def polled(self, at: int, serial: int) -> None:
        """Note that somebody knows of the completion of a call in another way than by waiting."""
        self.pending.pop(serial, None)
        ring = self.ring
        if ring is not None and ring.serial(at) == serial:
            ring.flag(at, CallFlag.POLLED)

    def dropped(self, at: int, serial: int, work: Any, *, overwritten: bool) -> None:
        """Note that a handle was thrown away before anybody waited."""
        ring = self.ring
        if ring is None or ring.serial(at) != serial or ring.pid != os.getpid():
            return
        flags = CallFlag.DROPPED | (CallFlag.OVERWRITTEN if overwritten else 0)
        try:
            flags |= CallFlag.COMPLETE if work.is_completed() else 0
        except Exception:  # a backend that cannot tell, at the end of the interpreter
            flags |= 0
        ring.flag(at, flags)

    def failed(self, at: int, serial: int, error: BaseException, begin: int) -> None:
        """Note that a collective raised."""
        self.pending.pop(serial, None)
        ring = self.ring
        if ring is not None and ring.serial(at) == serial:
            ring.stamp(at, WAITED, begin)
            ring.flag(at, CallFlag.FAILED)
            self.error(error, kind="collective", seq=serial)

    def native(self, at: int, serial: int) -> None:
        """Note a call that C++ launched: within backward it has completed when backward returns."""
        if self.in_backward:
            self._natives.append((at, serial))

    @guarded
    def reading(self, tensors: Iterable[torch.Tensor]) -> None:
        """Look whether something that is read now is the result of a call that nobody has waited for."""
        ring = self.ring
        if ring is None or not self.pending:
            return
        waiting = {}
        for serial, reference in list(self.pending.items()):
            tensor = reference()
            if tensor is None:
                del self.pending[serial]
            else:
                waiting[tensor.data_ptr()] = serial
        for parameter in tensors:
            gradient = parameter.grad
            for read in (gradient, parameter):
                if _is_exact(read) and read.data_ptr() in waiting:
                    serial = waiting.pop(read.data_ptr())
                    del self.pending[serial]
                    name = self.session.registry.name(parameter) or "?"
                    ring.note(Kind.READ, name, step=self.step, seq=serial & 0x7FFFFFFF)

    # -- marks --------------------------------------------------------------------------------------------------------

    def begins(self, kind: Kind) -> None:
        """Note the begin of a phase of the training step."""
        if self.ring is not None:
            if kind is not Kind.DATA and kind is not Kind.OPTIMIZER:
                self._begin_step()
                self.in_backward = kind is Kind.BACKWARD
            self._begun.setdefault(kind, _now())

    def ends(self, kind: Kind) -> None:
        """Note the end of a phase."""
        begun = self._begun.pop(kind, None)
        ring = self.ring
        if ring is None or begun is None:
            return
        ring.note(kind, "", step=self.step, begun=begun)
        if kind is Kind.BACKWARD:
            self.in_backward = False
            self.names = None
            now = _now()
            for at, serial in self._natives:
                if ring.serial(at) == serial:
                    ring.stamp(at, DONE, now)
            self._natives.clear()

    def step_ends(self) -> None:
        """Note the end of a training step."""
        ring = self.ring
        if ring is not None:
            ring.note(Kind.STEP, "", step=self.session.step, begun=self._step_began or None)
            self._step_began = _now()
            self.in_step = self.in_backward = False
            ring.set(Field.STEP, self.session.step + 1)
            self._begun.clear()

    def _begin_step(self) -> None:
        if not self.in_step:
            self.in_step = True
            if self.ring is not None:
                self.ring.set(Field.STEP, self.session.step)

    # -- ends ---------------------------------------------------------------------------------------------------------

    def disabled(self) -> None:
        """Note that the recorder has switched itself off, so that nobody misses the calls that follow."""
        if self.ring is not None:
            self.ring.set(Field.DISABLED, _now())

    def leaving(self) -> None:
        """Note where the program leaves by ``sys.exit`` or ``os._exit``."""
        if self.ring is not None:
            self.ring.position("\n".join(self.stacks.uncached(sys._getframe(1))))

    def raised(self, error: BaseException) -> None:
        """Note the error that ends this process, also where the recorder has switched itself off."""
        try:
            self._raised(error)
        except Exception as fault:
            self.session.disable(fault)

    def _raised(self, error: BaseException) -> None:
        failures = getattr(error, "failures", None)
        if isinstance(failures, dict):
            self._launcher_failed(failures)
        elif self.ring is not None:
            self.error(error, kind="end")
            self.ring.end(ProcessStatus.RAISED, 1)

    def error(self, error: BaseException, *, kind: str, seq: int = 0) -> None:
        """Write down an error: its type, what is known of such an error, where it was raised; never its text."""
        ring = self.ring
        if ring is not None:
            found = {"at": kind, "type": type(error).__name__, "stack": _facts.user_stack_of(error)[-12:]}
            found |= describe_error(error, self.groups.reduced)
            ring.note(Kind.ERROR, msgspec.json.encode(found).decode(), step=self.step, seq=seq & 0x7FFFFFFF)

    def _launcher_failed(self, failures: dict[int, Any]) -> None:
        ring = self.open(-1, 0)
        for rank, failure in failures.items():
            told = {"rank": rank, "pid": getattr(failure, "pid", 0), "exit_code": getattr(failure, "exitcode", None)}
            told["time"] = float(getattr(failure, "timestamp", 0) or 0)
            ring.note(Kind.FAILURE, msgspec.json.encode(told).decode())

    def _at_exit(self) -> None:
        ring = self.ring
        if ring is None or ring.pid != os.getpid():
            return
        code = self.session.ending.exit_code
        if ring.get(Field.STATUS) == ProcessStatus.RUNNING:
            if code in (None, 0):
                ring.end(ProcessStatus.FINISHED)
            else:
                ring.note(Kind.ERROR, msgspec.json.encode({"at": "end", "type": "SystemExit", "stack": []}).decode())
                ring.end(ProcessStatus.RAISED, code if isinstance(code, int) else 1)
        self.watchdog.stop()


def _is_exact(tensor: Any) -> TypeGuard[torch.Tensor]:
    return type(tensor) in (torch.Tensor, torch.nn.Parameter)
