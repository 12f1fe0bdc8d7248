"""The engine of a cluster: a thin layer over sbatch, squeue, scontrol and scancel.

Only few and old options and formats are used, since Slurm's JSON changes from version to version. A job is entered held
and under its own name; the number that Slurm gives it is stored before it is released, so that a gateway that dies in
between finds it again. How a job ended is what its supervisor wrote: Slurm forgets jobs after a while.
"""

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from ddparity._errors import UsageError
from ddparity.gateway._engine import Observation, Stage, log_paths
from ddparity.gateway.supervisor import JobFolder, JobSpec, Result

_PASSED = ("PATH", "HOME", "USER", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "SLURM_CONF")
_COMMAND_SECONDS = 20.0
_WAITING = {"PENDING", "REQUEUED", "REQUEUE_HOLD", "SUSPENDED"}
_ALIVE = {"RUNNING", "CONFIGURING", "COMPLETING", "STAGE_OUT", "SIGNALING", "STOPPED", "RESIZING"}
_SPARE_SECONDS = 20.0
_POLL_SECONDS = 1.0
_UNKNOWN_SECONDS = 60.0


class SlurmAway(RuntimeError):
    """Slurm does not answer; nothing is known of its jobs until it does."""


class SlurmEngine:
    """Runs jobs on a Slurm cluster whose nodes see the store.

    Args:
        jobs_dir: The folder of the jobs' folders, on a disk that every node has at the same place.
        options: Further options of sbatch.

    Raises:
        UsageError: Slurm's commands are not here.
    """

    def __init__(self, jobs_dir: Path, options: Sequence[str] = ()) -> None:
        self._jobs_dir = jobs_dir
        self._options = list(options)
        self._seen: dict[str, tuple[float, Observation]] = {}
        self._unknown: dict[str, float] = {}
        try:
            _call("sinfo", "--version")
        except SlurmAway as error:
            raise UsageError(f"--slurm needs Slurm's commands on PATH: {error}") from error

    def submit_held(self, spec: JobSpec) -> str:
        """Enter the job, held; return Slurm's number of it."""
        folder = self._folder(spec.uid)
        folder.create(spec)
        name = f"ddparity-{spec.uid}"
        known = _call("squeue", "-h", "-n", name, "-o", "%i").split()
        if known:
            return known[0]
        nodes = _num_nodes(spec)
        script = folder.root / "batch.sh"
        supervisor = shlex.join([sys.executable, "-m", "ddparity.gateway.supervisor", str(folder.root)])
        script.write_text(f"#!/bin/sh\nexec {supervisor}\n", encoding="utf-8")
        limit = [] if spec.timeout_s is None else [f"--time={int(spec.timeout_s // 60) + 2}"]
        return _call(
            "sbatch", "--parsable", "--hold", f"--job-name={name}", "--dependency=singleton", "--no-requeue",
            f"--nodes={nodes}", "--ntasks-per-node=1", f"--chdir={folder.root}", f"--output={folder.output_path}",
            "--open-mode=append", *limit, *self._options, str(script),
        ).strip().partition(";")[0]  # fmt: skip

    def release(self, spec: JobSpec, ref: str) -> None:
        """Let the job start when Slurm has room."""
        self._seen.pop(ref, None)
        try:
            _call("scontrol", "release", ref)
        except SlurmAway:
            if self._stage(ref)[0] == "held":
                raise

    def state(self, uid: str, ref: str) -> Observation:
        """Return what Slurm and the job's own files say; Slurm is asked once a second at most."""
        when, seen = self._seen.get(ref, (0.0, None))
        if seen is None or time.monotonic() - when > _POLL_SECONDS:
            seen = self._look(uid, ref)
            self._seen[ref] = (time.monotonic(), seen)
            if seen.stage in (Stage.ENDED, Stage.GONE):
                self._seen.pop(ref)
                self._unknown.pop(ref, None)
        return seen

    def _look(self, uid: str, ref: str) -> Observation:
        folder = self._folder(uid)
        try:
            word, detail = self._stage(ref)
        except SlurmAway:
            return Observation(stage=Stage.UNREACHABLE)
        result = folder.result()
        if word in ("held", "queued"):
            return Observation(stage=Stage.HELD if word == "held" else Stage.QUEUED)
        if word == "alive":
            return Observation(stage=Stage.RUNNING if folder.was_started() else Stage.QUEUED)
        if result is not None:
            return Observation(stage=Stage.ENDED, result=result)
        if not detail and self._may_be_there(folder, ref):
            return Observation(stage=Stage.UNREACHABLE)
        return self._without_result(folder, detail)

    def cancel(self, uid: str, ref: str, why: str) -> None:
        """Leave word for the supervisor; a job that has none, or one that does not heed it, is ended by Slurm."""
        folder = self._folder(uid)
        if not folder.cancel_path.exists():
            folder.request_cancel(why)
        spec = folder.spec()
        patience = (spec.grace_s if spec is not None else 0.0) * 2 + _SPARE_SECONDS
        if not folder.was_started() or time.time() - folder.cancel_path.stat().st_mtime > patience:
            _call("scancel", ref)

    def log_paths(self, uid: str) -> dict[str, Path]:
        """Return the logs that are there."""
        return log_paths(self._jobs_dir / uid)

    def _stage(self, ref: str) -> tuple[str, str]:
        """Return held, queued, alive or over, and Slurm's own word for it."""
        try:
            line = _call("squeue", "-h", "-t", "all", "-j", ref, "-o", "%T %r").strip()
        except SlurmAway as error:
            if "Invalid job id" not in str(error):
                raise
            line = ""  # Slurm has forgotten it
        state, _, reason = line.partition(" ")
        if state in _WAITING:
            return ("held" if "Held" in reason else "queued"), state
        return ("alive" if state in _ALIVE else "over"), state

    def _may_be_there(self, folder: JobFolder, ref: str) -> bool:
        """Return whether a job that Slurm does not know (it was itself started anew) may run all the same."""
        since = self._unknown.setdefault(ref, time.monotonic())
        return time.monotonic() - since < _UNKNOWN_SECONDS or folder.silence() < _UNKNOWN_SECONDS

    def _without_result(self, folder: JobFolder, state: str) -> Observation:
        now = time.time()
        cancelled = folder.cancel_path.exists()
        if state == "CANCELLED" or (cancelled and not folder.was_started()):
            why = folder.cancel_path.read_text(errors="replace") if cancelled else "cancelled in Slurm"
            result = Result(state="CANCELLED", exit_code=None, started=now, ended=now, error=why)
            return Observation(stage=Stage.ENDED, result=result)
        if state == "TIMEOUT":
            result = Result(
                state="FAILED", exit_code=None, started=now, ended=now, error="Slurm's time limit was reached"
            )
            return Observation(stage=Stage.ENDED, result=result)
        return Observation(stage=Stage.GONE, reason=f"the job's supervisor was lost; Slurm says {state or 'nothing'}")

    def _folder(self, uid: str) -> JobFolder:
        return JobFolder(self._jobs_dir / uid)


def _num_nodes(spec: JobSpec) -> int:
    train = next(phase for phase in spec.phases if phase.name == "train")
    return int(next(word for word in train.command if word.startswith("--nodes=")).partition("=")[2])


def _call(*command: str) -> str:
    """Run one of Slurm's commands and return what it printed.

    Raises:
        SlurmAway: It failed, took too long, or is not there.
    """
    env = {name: os.environ[name] for name in _PASSED if name in os.environ}
    try:
        done = subprocess.run(
            command,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_COMMAND_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SlurmAway(f"{command[0]}: {error}") from error
    if done.returncode != 0:
        raise SlurmAway(f"{command[0]}: {done.stderr.strip()[:500] or f'exit code {done.returncode}'}")
    return done.stdout
