"""The engine of one machine: a detached supervisor a job, told from a lost one by its lock."""

import os
import subprocess
import sys
import time
from pathlib import Path

from ddparity._errors import UsageError
from ddparity._linux import boot_id
from ddparity.gateway._engine import Observation, Stage, log_paths
from ddparity.gateway.supervisor import TAG_VARIABLE, JobFolder, JobSpec, Members, Result
from ddparity.gateway.supervisor._cgroup import Cgroup

_PASSED = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "PYTHONPATH", "SLURM_CONF")
_MAX_OUTPUT = 2000


class LocalEngine:
    """Runs jobs on this machine.

    Args:
        jobs_dir: The folder of the jobs' folders; on a local disk, since locks on network disks cannot be relied on.
    """

    def __init__(self, jobs_dir: Path) -> None:
        if sys.platform != "linux":
            raise UsageError("The engine 'local' needs Linux: it keeps jobs together by /proc, prctl and pidfd.")
        self._jobs_dir = jobs_dir
        self._children: dict[str, subprocess.Popen[bytes]] = {}

    def submit_held(self, spec: JobSpec) -> str:
        """Make the job's folder."""
        self._folder(spec.uid).create(spec)
        return spec.uid

    def release(self, spec: JobSpec, ref: str) -> None:
        """Start the supervisor, unless one has or had the job."""
        folder = self._folder(ref)
        child = self._children.get(ref)
        starting = child is not None and child.poll() is None
        if starting or folder.was_started() or folder.is_supervised():
            return
        env = {name: os.environ[name] for name in _PASSED if name in os.environ}
        with folder.output_path.open("ab") as output:
            # A session of its own and files in place of pipes: nothing of it ends with this process.
            self._children[ref] = subprocess.Popen(
                [sys.executable, "-m", "ddparity.gateway.supervisor", str(folder.root)],
                env=env,
                cwd=folder.root,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def state(self, uid: str, ref: str) -> Observation:
        """Look at lock, result and birth, in the order in which no moment between them can deceive."""
        folder = self._folder(ref)
        child = self._children.get(ref)
        ended = child is not None and child.poll() is not None
        if folder.is_supervised():
            return Observation(stage=Stage.RUNNING if folder.was_started() else Stage.HELD)
        result = folder.result()  # the lock was free before this was read: who wrote it is through with it
        if result is not None:
            self._forget(ref)
            return Observation(stage=Stage.ENDED, result=result)
        if folder.was_started():
            return self._lost(folder, uid)
        if ended:
            self._forget(ref)
            return Observation(stage=Stage.ENDED, result=_not_started(folder))
        return Observation(stage=Stage.HELD)

    def cancel(self, uid: str, ref: str, why: str) -> None:
        """Leave word for the supervisor."""
        folder = self._folder(ref)
        if not folder.cancel_path.exists():
            folder.request_cancel(why)

    def log_paths(self, uid: str) -> dict[str, Path]:
        """Return the logs that are there."""
        return log_paths(self._jobs_dir / uid)

    def _lost(self, folder: JobFolder, uid: str) -> Observation:
        """End what a lost supervisor has left; GONE only when nothing is left."""
        birth = folder.birth()
        if birth is not None and birth.boot_id != boot_id():
            return Observation(stage=Stage.GONE, reason="the machine was started anew while the job ran")
        cgroup = None if birth is None or birth.cgroup is None else Cgroup(Path(birth.cgroup))
        if not Members(f"{TAG_VARIABLE}={uid}", cgroup).kill():
            return Observation(stage=Stage.CLEARING)
        if cgroup is not None:
            cgroup.remove()
        self._forget(uid)
        return Observation(stage=Stage.GONE, reason="the job's supervisor was killed; what it had started was ended")

    def _forget(self, ref: str) -> None:
        child = self._children.pop(ref, None)
        if child is not None:
            child.wait()

    def _folder(self, uid: str) -> JobFolder:
        return JobFolder(self._jobs_dir / uid)


def _not_started(folder: JobFolder) -> Result:
    try:
        said = folder.output_path.read_text(errors="replace")[-_MAX_OUTPUT:].strip()
    except OSError:
        said = ""
    now = time.time()
    last = said.splitlines()[-1] if said else "it said nothing"
    error = f"the job's supervisor could not start: {last}"
    return Result(state="FAILED", exit_code=None, started=now, ended=now, error=error)
