"""The facts of a rank: where it ran, with which versions, devices, seeds and settings."""

import os
import platform
import random
import socket
import sys
import time
import traceback
from importlib import metadata
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from ddparity.trace import CaptureConfig, RankFacts
from ddparity.trace._environment import allowed_environment

from ._fingerprint import fingerprint

_LIBRARIES = ("torch", "numpy", "ddparity", "lightning", "transformers", "accelerate", "deepspeed", "torchvision")

_OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")
_LOCAL_RANKS = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID")
_WORLD_SIZES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS")


def rank_facts(config: CaptureConfig) -> tuple[int, int, RankFacts]:
    """Return rank, world size and facts of this process at the moment recording starts."""
    ready = dist.is_available() and dist.is_initialized()
    rank = rank_of_process()
    world_size = dist.get_world_size() if ready else _from_environment(_WORLD_SIZES, 1)
    facts = RankFacts(
        rank=rank,
        local_rank=_from_environment(_LOCAL_RANKS, rank),
        world_size=world_size,
        pid=os.getpid(),
        hostname=socket.gethostname(),
        argv=list(sys.argv),
        started=time.time(),
        versions=_versions(),
        env=allowed_environment(os.environ),
        seeds={"torch": torch.initial_seed()},
    )
    refresh(facts)
    return rank, world_size, facts


def rank_of_process() -> int:
    """Return the rank of this process as it is known now, before or after its process group is there."""
    ready = dist.is_available() and dist.is_initialized()
    return dist.get_rank() if ready else _from_environment(_RANKS, 0)


def refresh(facts: RankFacts) -> None:
    """Bring up to date what may have been set after recording started."""
    facts.settings = _settings()
    fingerprint(facts)
    if dist.is_available() and dist.is_initialized():
        facts.backend = dist.get_backend()
        if (facts.rank, facts.world_size) != (dist.get_rank(), dist.get_world_size()):
            was = f"rank {facts.rank} of {facts.world_size}"
            facts.partial.append(f"recording began as {was}, before its process group of {dist.get_world_size()}")
    address, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
    facts.master = f"{address}:{port}" if address else None
    if torch.cuda.is_available():
        facts.device = f"cuda:{torch.cuda.current_device()}"
        facts.device_name = torch.cuda.get_device_name()
    else:
        facts.device, facts.device_name = "cpu", platform.processor() or platform.machine()


def random_states() -> dict[str, str]:
    """Return a short digest of the state of every global random generator, without drawing from any."""
    states = {
        "torch": torch.get_rng_state().numpy().tobytes(),
        "python": repr(random.getstate()).encode(),
        "numpy": _numpy_state(),
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        states["cuda"] = torch.cuda.get_rng_state().cpu().numpy().tobytes()
    return {name: _short_hash(state) for name, state in states.items()}


def _numpy_state() -> bytes:
    state = np.random.get_state(legacy=False)
    inner = state["state"]  # an array for the default generator, integers for others
    parts = [inner[key] for key in sorted(inner)]
    return b"".join(p.tobytes() if isinstance(p, np.ndarray) else repr(p).encode() for p in parts)


def _from_environment(names: tuple[str, ...], default: int) -> int:
    found = next((os.environ[name] for name in names if name in os.environ), "")
    return int(found) if found.isdecimal() else default


def stack_of(error: BaseException) -> list[str]:
    """Return ``file:line in function`` for each frame of an error, innermost last, without locals."""
    frames = traceback.extract_tb(error.__traceback__)
    return [f"{frame.filename}:{frame.lineno} in {frame.name}" for frame in frames]


def user_stack_of(error: BaseException) -> list[str]:
    """Return the same without the frames of the recorder itself."""
    return [frame for frame in stack_of(error) if not frame.startswith(_OWN)]


def _short_hash(data: bytes) -> str:
    from hashlib import blake2b

    return blake2b(data, digest_size=8).hexdigest()


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "platform": platform.platform()}
    for library in _LIBRARIES:
        try:
            found[library] = metadata.version(library)
        except metadata.PackageNotFoundError:
            continue
    if torch.version.cuda:
        found["cuda"] = torch.version.cuda
    return found


def _settings() -> dict[str, Any]:
    return {
        "default_dtype": str(torch.get_default_dtype()).removeprefix("torch."),
        "num_threads": torch.get_num_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "cudnn_deterministic": torch.backends.cudnn.deterministic,
        "anomaly_detection": torch.is_anomaly_enabled(),
    }
