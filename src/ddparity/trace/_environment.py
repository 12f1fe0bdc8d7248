"""Which environment variables may be recorded: an allow-list, never the whole environment.

Only the standard library is imported here, so that the recorder inside the training process can use it too.
"""

from collections.abc import Mapping

MAX_VALUE = 1024
"""Longest value kept, in characters."""

_NAMES = frozenset(
    {
        # where a process stands among the others
        "RANK",
        "LOCAL_RANK",
        "GROUP_RANK",
        "ROLE_RANK",
        "NODE_RANK",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "GROUP_WORLD_SIZE",
        "ROLE_WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "PMI_RANK",
        "PMI_SIZE",
        "SLURM_JOB_ID",
        "SLURM_JOB_NUM_NODES",
        "SLURM_STEP_ID",
        "SLURM_NNODES",
        "SLURM_NTASKS",
        "SLURM_NTASKS_PER_NODE",
        "SLURM_CPUS_PER_TASK",
        "SLURM_GPUS_ON_NODE",
        "SLURM_GPUS_PER_NODE",
        "SLURM_PROCID",
        "SLURM_LOCALID",
        "SLURM_NODEID",
        "SLURM_RESTART_COUNT",
        # which devices it sees
        "CUDA_VISIBLE_DEVICES",
        "CUDA_DEVICE_ORDER",
        "CUDA_LAUNCH_BLOCKING",
        "CUDA_DEVICE_MAX_CONNECTIONS",
        "HIP_VISIBLE_DEVICES",
        "ROCR_VISIBLE_DEVICES",
        "ASCEND_RT_VISIBLE_DEVICES",
        # what changes the arithmetic or its order
        "OMP_NUM_THREADS",
        "MKL_NUM_THREADS",
        "MKL_CBWR",
        "OPENBLAS_NUM_THREADS",
        "CUBLAS_WORKSPACE_CONFIG",
        "NVIDIA_TF32_OVERRIDE",
        "PYTHONHASHSEED",
    }
)
_PREFIXES = ("NCCL_", "GLOO_", "HCCL_", "TORCH_", "TORCHELASTIC_", "TORCHINDUCTOR_", "PYTORCH_")
_SECRET = ("TOKEN", "KEY", "SECRET", "PASS", "CREDENTIAL")


def is_allowed(name: str) -> bool:
    """Return whether the variable ``name`` may be recorded; a name that hints at a secret never is."""
    if any(word in name.upper() for word in _SECRET):
        return False
    return name in _NAMES or name.startswith(_PREFIXES)


def allowed_environment(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of ``env`` that may be recorded, sorted by name, each value cut to ``MAX_VALUE``."""
    return {name: env[name][:MAX_VALUE] for name in sorted(env) if is_allowed(name)}
