"""From a request to the commands that a supervisor runs: the gate, the training, the verdict."""

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ddparity.gateway._entries import Entry
from ddparity.gateway._request import JobRequest
from ddparity.gateway._settings import Settings
from ddparity.gateway.supervisor import TAG_VARIABLE, JobFolder, JobSpec, Phase

_INHERITED = (
    "PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "SHELL", "LD_LIBRARY_PATH",
    "VIRTUAL_ENV", "CUDA_HOME", "CUDA_VISIBLE_DEVICES", "SSL_CERT_FILE", "XDG_CACHE_HOME", "HF_HOME", "SLURM_CONF",
)  # fmt: skip
"""What jobs get of the gateway's own environment. Never its settings: they may hold a password."""


@dataclass(frozen=True, kw_only=True)
class Gate:
    """Whether the gate is run, and what its control is called in the store of trials."""

    run: bool
    control: str | None


def control_name(entry: Entry) -> str:
    """Return the name of the control that belongs to this code with these arguments."""
    args = hashlib.sha256("\0".join(entry.args).encode()).hexdigest()
    return f"gate-{entry.fingerprint()[:12]}-{args[:8]}"


def job_spec(
    uid: str,
    request: JobRequest,
    entry: Entry,
    gate: Gate,
    slots: Sequence[int] | None,
    settings: Settings,
    environ: Mapping[str, str] | None = None,
) -> JobSpec:
    """Return what the supervisor is to do.

    Args:
        uid: The job's own number.
        request: What was asked for.
        entry: What ``request.entry`` turned out to be.
        gate: Whether the gate is run.
        slots: The GPUs that the job has; empty for shares of the processors, None where the engine hands them out.
        settings: The gateway's settings.
        environ: The gateway's environment; the process's own when None.
    """
    folder = JobFolder(settings.jobs_dir / uid)
    limits = [each for each in (request.timeout_s, settings.max_timeout_s) if each is not None]
    return JobSpec(
        uid=uid,
        job_id=request.job_id,
        phases=list(_phases(uid, request, entry, gate, folder, settings)),
        env=_environment(uid, request, folder, slots, os.environ if environ is None else environ),
        cwd=str(folder.root / "work"),
        timeout_s=min(limits, default=None),
        grace_s=request.grace_s,
        isolation=settings.isolation if request.engine == "local" else "walk",  # a cluster has its own cgroups
        log_limit_bytes=settings.log_limit_bytes,
    )


def _phases(
    uid: str, request: JobRequest, entry: Entry, gate: Gate, folder: JobFolder, settings: Settings
) -> list[Phase]:
    trial = [settings.python, "-m", "ddparity.gateway.trial"]
    store = ["--store", str(settings.store)]
    phases: list[Phase] = []
    if gate.run:
        alone = [settings.python, *entry.words, *entry.args]
        timeout = ["--timeout", f"{settings.gate_timeout_s:g}"]
        phases.append(
            Phase(
                name="gate",
                command=[*trial, "control", *store, "--name", str(gate.control), *timeout, "--", *alone],
                passes={0: "PASS", 3: "INCONCLUSIVE"},
                env={"DDPARITY_JOB_SINGLE": "1"},
                # What it logs and saves is not the job's; a training must not resume from its own gate.
                without=["DDPARITY_METRICS", "DDPARITY_CHECKPOINT_DIR"],
                cwd=str(folder.root / "gate"),
                watched=False,
            )
        )
    training = training_command(uid, request, entry, settings, folder)
    if request.record:
        training = [*trial, "candidate", *store, "--name", f"job-{uid}", "--", *training]
    phases.append(
        Phase(
            name="train",
            command=training,
            num_ranks=request.world_size,
            attempts=request.max_restarts + 1,
            watched=request.engine == "local",  # elsewhere each node watches its own
        )
    )
    if request.record:
        names = ["--control", gate.control or "", "--candidate", f"job-{uid}", "--out", str(folder.verdict_path)]
        words = {0: "PASS", 1: "DEVIATES", 3: "INCONCLUSIVE"}
        phases.append(
            Phase(
                name="verdict", command=[*trial, "verdict", *store, *names], passes=words, optional=True, watched=False
            )
        )
    return phases


def training_command(uid: str, request: JobRequest, entry: Entry, settings: Settings, folder: JobFolder) -> list[str]:
    """Return the command that starts the processes: torchrun here, or a step of torchruns over Slurm's nodes."""
    torchrun = [settings.python, "-m", "torch.distributed.run"]
    per_node = ["--nproc-per-node", str(request.world_size // request.nodes), "--max-restarts", "0"]
    if request.engine == "local":
        # --standalone picks a free port by itself; a port of ours could be somebody else's by the time it is bound.
        return [*torchrun, "--standalone", *per_node, *entry.words, *entry.args]
    step = ["srun", f"--nodes={request.nodes}", "--ntasks-per-node=1", "--kill-on-bad-exit=1"]
    node = [settings.python, "-m", "ddparity.gateway.supervisor.node", str(folder.root)]
    return [*step, *node, *torchrun, f"--nnodes={request.nodes}", *per_node, *entry.words, *entry.args]


def _environment(
    uid: str, request: JobRequest, folder: JobFolder, slots: Sequence[int] | None, environ: Mapping[str, str]
) -> dict[str, str]:
    env = {name: environ[name] for name in _INHERITED if name in environ}
    if slots is not None:
        env["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, slots))
        if not slots:
            env["OMP_NUM_THREADS"] = "1"
    return env | {
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(max(1, round(request.grace_s))),
        **request.env,
        TAG_VARIABLE: uid,
        "DDPARITY_JOB_ID": request.job_id,
        "DDPARITY_METRICS": str(folder.metrics_path),
        "DDPARITY_CHECKPOINT_DIR": str(folder.root / "checkpoints"),
        "DDPARITY_BATCH_SIZE": str(request.batch_size),
        "DDPARITY_GLOBAL_BATCH": str(request.global_batch),
        **({} if request.learning_rate is None else {"DDPARITY_LEARNING_RATE": repr(request.learning_rate)}),
    }
