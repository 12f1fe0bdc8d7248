"""Starting the command of a trial and seeing it to its end: output, signals, time-out.

The command runs in a session of its own with the recorder's configuration in its environment. Its output passes
through untouched.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import IO

import msgspec

from ddparity._errors import CommandFailed
from ddparity.trace._schema import CaptureConfig, TrialFacts, TrialStatus
from ddparity.trials._hangs import LOOK_SECONDS, HangWatch
from ddparity.trials._processes import Processes
from ddparity.trials._spec import RecordSpec

CAPTURE_VARIABLE = "DDPARITY_CAPTURE"
CHECKPOINTS = "{checkpoints}"
"""In a command: a folder of the trial's own to save into."""
KILL_AFTER_SECONDS = 10.0
"""How long a command that ran out of time may take to end after SIGTERM."""
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PATIENCE = 3
"""The third interrupt ends the command with SIGKILL."""


def check_startable(command: list[str]) -> None:
    """Find the program before a trial is made for it.

    Raises:
        CommandFailed: It is not there or cannot be executed.
    """
    program = command[0]
    if shutil.which(program) is not None:
        return
    if os.sep in program:
        there = Path(program).exists()
        problem = "is not executable" if there else f"does not exist (looked in {Path.cwd()})"
    else:
        problem = "was not found on PATH"
    hint = " Did you mean python3?" if program == "python" and shutil.which("python3") else ""
    if program.endswith(".py"):
        hint = f" Did you mean: python {program}?"
    raise CommandFailed(
        f"The command cannot be started: {program!r} {problem}.{hint} "
        "Activate the environment that the training runs in, or give the whole path. See: ddparity doctor"
    )


def launch(spec: RecordSpec, facts: TrialFacts, folder: Path) -> None:
    """Start the command, see it to its end, and enter into ``facts`` how it ended.

    Raises:
        CommandFailed: The operating system cannot start it.
    """
    signals = _Signals()
    timed_out = hung = False
    watch = HangWatch(spec, folder)
    with _output(spec, folder) as output, signals.caught():
        processes = _started(spec, facts, folder, output)
        signals.target = processes
        try:
            timed_out, hung = _see_to_its_end(processes, spec.timeout_s, watch)
        except BaseException:
            processes.signal_group(signal.SIGKILL)
            processes.wait(KILL_AFTER_SECONDS)
            raise
        finally:
            signals.target = None
            _clear_up(processes, facts, cut_short=timed_out or hung or bool(signals.seen))
    facts.notes += watch.notes
    _enter_outcome(facts, spec, timed_out=timed_out, hung=hung, seen=signals.seen)


def _started(spec: RecordSpec, facts: TrialFacts, folder: Path, output: IO[bytes] | None) -> Processes:
    config = CaptureConfig(
        trial_dir=str(folder),
        steps=spec.steps,
        level=spec.level,
        stop_after_steps=spec.stop_after_steps,
        interrupt_at=spec.interrupt_at,
        interrupt_rank=spec.interrupt_rank,
        interrupt_how=spec.interrupt_how,
        group_timeout_s=spec.group_timeout_s,
        wrapper=spec.wrapper,
        fixed_batch=spec.fixed_batch,
        loader_epochs=spec.loader_epochs,
        loaders_only=spec.loaders_only,
        batch_dim=spec.batch_dim,
        dtype=spec.dtype,
        perturb=spec.perturb,
        neutral_dropout=spec.neutral_dropout,
        bank=spec.bank,
        pinned=None if facts.pinned is None else str(spec.store.path(facts.pinned).resolve()),
        describe_inputs=spec.describe_inputs,
        synthetic=spec.synthetic,
        control=spec.control,
        hang_after_s=spec.hang_after_s,
        against=None if facts.against is None else str(spec.store.path(facts.against).resolve()),
    )
    value = msgspec.json.encode(config).decode()
    env = child_environment(os.environ, value)
    try:
        leader = subprocess.Popen(
            _filled(spec.command, folder), env=env, stdout=output, stderr=output, start_new_session=True
        )
    except OSError as error:
        facts.notes.append(f"the command could not be started: {error.strerror}")
        raise CommandFailed(
            f"{spec.command[0]!r} could not be started: {error.strerror}. "
            "Check that it runs without ddparity, then record it again."
        ) from error
    return Processes(leader, f"{CAPTURE_VARIABLE}={value}")


def _filled(command: list[str], folder: Path) -> list[str]:
    """Return the command with ``{checkpoints}`` made a fresh folder of this trial's own, which is never bundled."""
    if not any(CHECKPOINTS in word for word in command):
        return command
    own = folder / "private" / "checkpoints"
    own.parent.mkdir(mode=0o700, exist_ok=True)
    own.mkdir(mode=0o700)
    return [word.replace(CHECKPOINTS, str(own.resolve())) for word in command]


def _see_to_its_end(processes: Processes, timeout_s: float | None, watch: HangWatch) -> tuple[bool, bool]:
    """Wait for the command; return whether it had to be ended because its time was up, or because it hung."""
    deadline = float("inf") if timeout_s is None else time.monotonic() + timeout_s
    while True:
        left = deadline - time.monotonic()
        if processes.wait(min(max(left, 0.0), LOOK_SECONDS)):
            return False, False
        timed_out, hung = time.monotonic() >= deadline, watch.look()
        if timed_out or hung:
            break
    processes.signal_group(signal.SIGTERM)
    if not processes.wait(KILL_AFTER_SECONDS):
        processes.signal_group(signal.SIGKILL)
        processes.wait(KILL_AFTER_SECONDS)
    return timed_out, hung and not timed_out


def _clear_up(processes: Processes, facts: TrialFacts, *, cut_short: bool) -> None:
    left = processes.sweep(everywhere=cut_short or processes.exit_code() != 0)
    facts.exit_code = processes.reap()
    if left:
        facts.notes.append(f"{left} process{'es' if left > 1 else ''} of the command outlived it and had to be ended")


def _enter_outcome(facts: TrialFacts, spec: RecordSpec, *, timed_out: bool, hung: bool, seen: list[int]) -> None:
    if facts.exit_code is not None and facts.exit_code < 0:
        facts.signal = _signal_name(-facts.exit_code)
    if timed_out:
        facts.status = TrialStatus.TIMED_OUT
        facts.notes.append(f"the command was ended after --timeout {spec.timeout_s:g} s")
    elif hung:
        facts.status = TrialStatus.TIMED_OUT
    elif seen:
        facts.status = TrialStatus.INTERRUPTED
        facts.notes.append(f"ddparity received {_signal_name(seen[0])} and passed it on")
    elif facts.exit_code == 0:
        facts.status = TrialStatus.COMPLETED
    else:
        facts.status = TrialStatus.FAILED


def outcome(facts: TrialFacts) -> str:
    """Return in words how a trial's command ended: its signal, its exit code, or its status."""
    if facts.status is TrialStatus.TIMED_OUT:
        return "timed out"
    if facts.signal is not None:
        return facts.signal
    if facts.exit_code is not None:
        return f"exit code {facts.exit_code}"
    return facts.status.value


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def child_environment(env: Mapping[str, str], capture: str) -> dict[str, str]:
    """Return an environment in which every Python process that imports torch is recorded, as ``capture`` says."""
    from ddparity.capture import bootstrap_path

    old = env.get("PYTHONPATH")
    new = os.fspath(bootstrap_path())
    return {**env, CAPTURE_VARIABLE: capture, "PYTHONPATH": f"{new}{os.pathsep}{old}" if old else new}


@contextlib.contextmanager
def _output(spec: RecordSpec, folder: Path) -> Generator[IO[bytes] | None]:
    if not spec.quiet:
        sys.stdout.flush()
        yield None
        return
    private = folder / "private"
    private.mkdir(mode=0o700, exist_ok=True)
    with (private / "output.log").open("ab") as file:
        yield file


class _Signals:
    """Signals that arrive while the command runs; they are passed on to its process group."""

    def __init__(self) -> None:
        self.seen: list[int] = []
        self._target: Processes | None = None

    @property
    def target(self) -> Processes | None:
        """Where signals go; those that came before there was a target are delivered when it is set."""
        return self._target

    @target.setter
    def target(self, target: Processes | None) -> None:
        self._target = target
        if target is not None and self.seen:
            target.signal_group(self.seen[-1])

    @contextlib.contextmanager
    def caught(self) -> Generator[None]:
        """Catch the signals inside; one that was ignored (nohup) stays ignored. Only the main thread can catch any."""
        old = {}
        with contextlib.suppress(ValueError):
            for number in _FORWARDED:
                if signal.getsignal(number) not in (signal.SIG_IGN, None):
                    old[number] = signal.signal(number, self._pass_on)
        try:
            yield
        finally:
            for number, handler in old.items():
                signal.signal(number, handler)

    def _pass_on(self, number: int, _frame: object) -> None:
        self.seen.append(number)
        if self._target is not None:
            self._target.signal_group(number if len(self.seen) < _PATIENCE else signal.SIGKILL)
