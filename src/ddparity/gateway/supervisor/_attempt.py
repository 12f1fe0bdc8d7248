"""One start of one command of a job: from the fork to the moment when none of its processes is left."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

from ddparity import _linux

from . import _logs
from ._cgroup import Cgroup
from ._folder import JobFolder
from ._members import Members
from ._ranks import Ranks, signal_name
from ._spec import Attempt, JobSpec, Phase

BOOTSTRAP = Path(__file__).parent / "_bootstrap"
POLL_SECONDS = 0.05
_TRIM_SECONDS = 1.0
_NODES_SECONDS = 5.0
_NAMESPACE = ["unshare", "--pid", "--fork", "--kill-child=KILL", "--mount-proc"]


class Running:
    """A command that was started, and the reasons for which it may have to be ended.

    Args:
        folder: The job's folder.
        spec: The job.
        phase: What to run.
        number: Which attempt of this phase it is.
        members: The processes of the job.
        cgroup: Where they are born, if there is one.
        node: Which node's ranks can be looked at from here.
    """

    def __init__(
        self,
        folder: JobFolder,
        spec: JobSpec,
        phase: Phase,
        number: int,
        members: Members,
        cgroup: Cgroup | None,
        *,
        node: str = "0",
    ) -> None:
        self._spec = spec
        self._phase = phase
        self._number = number
        self._members = members
        self._cgroup = cgroup
        self._logs = folder.logs(phase.name, number)
        self._marks = folder.marks(phase.name, number)
        self._folder = folder
        self.ranks = Ranks(self._marks, phase.num_ranks, node)

    def run(self, stop: Callable[[], str | None]) -> Attempt:
        """Start the command and see it to its end.

        Args:
            stop: Asked all along; a reason ends the command.
        """
        started = time.time()
        for path in (self._logs, self._marks):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            with (self._logs / "agent.log").open("ab") as output:
                process = self._start(output)
        except OSError as error:
            text = f"{self._phase.command[0]!r} cannot be started: {error.strerror}"
            return self._told(started, None, "start", 0, text)
        reason = self._watch(process, stop)
        if reason is not None:
            self._end(process)
        swept = self._members.clear(but=process.pid)
        return self._told(started, process.wait(), reason or "itself", len(swept - {process.pid}), None)

    def _start(self, output: IO[bytes]) -> subprocess.Popen[bytes]:
        command = self._phase.command
        if self._spec.isolation == "pidns":
            user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
            command = [*_NAMESPACE, *user, *command]
        return subprocess.Popen(
            command,
            env=self._environment(),
            cwd=self._phase.cwd or self._spec.cwd,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            preexec_fn=self._before_exec,  # safe: the supervisor has one thread
        )

    def _before_exec(self) -> None:
        if self._cgroup is not None:
            self._cgroup.enter()
        _linux.die_with_parent(signal.SIGTERM if self._spec.isolation != "pidns" else signal.SIGKILL)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)

    def _environment(self) -> dict[str, str]:
        allocation = {name: value for name, value in os.environ.items() if name.startswith("SLURM_")}
        env = {**allocation, **self._spec.env, **self._phase.env}
        for name in self._phase.without:
            env.pop(name, None)
        old = env.get("PYTHONPATH")
        return {
            **env,
            "PYTHONPATH": f"{BOOTSTRAP}{os.pathsep}{old}" if old else str(BOOTSTRAP),
            "DDPARITY_JOB_MARKS": str(self._marks),
            "DDPARITY_JOB_LOGS": str(self._logs),
            "DDPARITY_ATTEMPT": str(self._number),
        }

    def _watch(self, process: subprocess.Popen[bytes], stop: Callable[[], str | None]) -> str | None:
        """Wait for the command; return why it has to be ended, or None when it ended by itself."""
        trimmed = time.monotonic()
        while process.poll() is None:
            reason = stop() or self._lost_a_rank()
            if reason is not None:
                return reason
            self._members.reap(but=process.pid)
            if time.monotonic() - trimmed > _TRIM_SECONDS:
                trimmed = time.monotonic()
                self._trim()
            time.sleep(POLL_SECONDS)
        self._look()
        return None

    def _look(self) -> None:
        if self._phase.watched:
            self.ranks.look()

    def _lost_a_rank(self) -> str | None:
        """Say so when a rank died and its agent has not ended the others in time: torchrun waits 30 s for them."""
        if not self._phase.watched:
            return None
        self.ranks.look()
        if self.ranks.died and time.time() - min(self.ranks.died.values()) > self._spec.grace_s:
            return "rank"
        return None

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        """Ask the command to end, and wait for as long as it may take."""
        target = process.pid if self._spec.isolation != "pidns" else _first_child(process.pid)
        with contextlib.suppress(ProcessLookupError):
            os.kill(target, signal.SIGTERM)
        # Where nodes end their own ranks, they have to be given the time for it.
        deadline = time.monotonic() + self._spec.grace_s + (0.0 if self._phase.watched else _NODES_SECONDS)
        while process.poll() is None and time.monotonic() < deadline:
            self._members.reap(but=process.pid)
            time.sleep(POLL_SECONDS)
        self._look()

    def _trim(self) -> None:
        for log in self._logs.glob("*.log"):
            try:
                _logs.trim(log, self._spec.log_limit_bytes)
            except OSError as error:  # a full disk, for one: the job goes on
                print(f"{log} cannot be trimmed: {error}", file=sys.stderr, flush=True)

    def _told(self, started: float, exit_code: int | None, by: str, swept: int, error: str | None) -> Attempt:
        return Attempt(
            phase=self._phase.name,
            number=self._number,
            started=started,
            ended=time.time(),
            exit_code=exit_code,
            ended_by=by,
            swept=swept,
            finished=self.ranks.num_finished(),
            error=error or self._what_failed(exit_code, by),
        )

    def _what_failed(self, exit_code: int | None, by: str) -> str | None:
        if exit_code == 0 and by == "itself":
            return None
        if exit_code is not None and exit_code < 0 and by == "itself":  # its ranks died with it
            return f"the launcher was killed by {signal_name(-exit_code)}"
        return self.ranks.first_error()


def _first_child(pid: int) -> int:
    """Return the command that ``unshare`` started, since ``unshare`` passes no signal on."""
    return next((each for each in _linux.pids() if _linux.parent(each) == pid), pid)
