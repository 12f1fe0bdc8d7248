"""The gateway's settings: argument > environment (``DDPARITY_GATEWAY_...``) > ``gateway.toml`` > default."""

import difflib
import os
import sys
import tomllib
from pathlib import Path
from typing import Any, Self

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from ddparity._errors import UsageError

LOOPBACK = ("127.0.0.1", "::1", "localhost")
ENV_PREFIX = "DDPARITY_GATEWAY_"
_ALLOWED_ENV = [
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "PYTHONHASHSEED",
    "PYTHONUNBUFFERED",
    "TORCH_DISTRIBUTED_DEBUG",
    "TORCH_LOGS",
    "TORCH_SHOW_CPP_STACKTRACES",
    "NCCL_DEBUG",
    "NCCL_SOCKET_IFNAME",
    "NCCL_IB_DISABLE",
    "NCCL_P2P_DISABLE",
    "GLOO_SOCKET_IFNAME",
    "CUBLAS_WORKSPACE_CONFIG",
    "CUDA_LAUNCH_BLOCKING",
    "NVIDIA_TF32_OVERRIDE",
    "TOKENIZERS_PARALLELISM",
    "HF_HUB_OFFLINE",
    "JOB_*",
]


class Settings(BaseSettings):
    """Settings of one gateway; frozen once it runs."""

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, extra="forbid", frozen=True)

    store: Path = Field(description="The folder of jobs and trials.")
    database_url: str | None = Field(None, description="Default: gateway.sqlite in the store.")
    host: str = Field("127.0.0.1", description="Any other address than loopback demands tokens.")
    port: int = Field(8720, ge=0, le=65535)
    require_tokens: bool = Field(False, description="Demand tokens on loopback too.")
    allowed_hosts: list[str] = Field(
        default_factory=list[str], description="Host names under which the gateway may be called."
    )
    roots: list[Path] = Field(default_factory=list[Path], description="Folders whose scripts may be run.")
    allowed_env: list[str] = Field(_ALLOWED_ENV, description="Variables a job may set; a * at the end stands for more.")
    python: str = Field(sys.executable, description="The interpreter that runs jobs.")
    slots: int | None = Field(None, ge=0, description="Shares of the processors. Default: the GPUs, else 8 or more.")
    max_owner_slots: int | None = Field(None, ge=1)
    max_owner_queued: int = Field(10_000, ge=1)
    max_queued: int = Field(50_000, ge=1)
    aging_s: float = Field(600.0, gt=0)
    patience_s: float = Field(60.0, ge=0)
    max_timeout_s: float | None = Field(None, gt=0, description="The longest any job may run.")
    gate_timeout_s: float = Field(600.0, gt=0)
    isolation: str = Field("auto", pattern="^(auto|walk|pidns)$")
    log_limit_bytes: int = Field(64 << 20, ge=4096)
    min_free_bytes: int = Field(64 << 20, ge=0, description="No job starts while the disk has less.")
    max_body_bytes: int = Field(256 << 10, ge=1024)
    rate_per_s: float = Field(1000.0, gt=0, description="Requests a second of one caller.")
    max_streams: int = Field(64, ge=1)
    judge_timeout_s: float = Field(60.0, gt=0, le=3600, description="The longest a page may take to judge trials.")
    paused: bool = Field(False, description="Take jobs in and start none.")
    slurm: bool = Field(False, description="Whether engine 'slurm' may be asked for.")
    slurm_options: list[str] = Field(
        default_factory=list[str], description="Further options of sbatch, such as --partition=gpu."
    )

    @classmethod
    def load(cls, store: Path, **given: Any) -> Self:
        """Return the settings for a store: what is given, else the environment, else its ``gateway.toml``.

        Raises:
            UsageError: A key is not known, or a value cannot be used.
        """
        filed = _filed(store / "gateway.toml", set(cls.model_fields))
        lower = {name: value for name, value in filed.items() if _variable(name) not in os.environ}
        try:
            return cls(store=store.resolve(), **{**lower, **{k: v for k, v in given.items() if v is not None}})
        except ValidationError as error:
            first = error.errors()[0]
            name = ".".join(map(str, first["loc"]))
            raise UsageError(
                f"The setting {name!r} cannot be used: {first['msg']}. See: ddparity serve --help"
            ) from error

    @classmethod
    def sources(cls, store: Path) -> dict[str, str]:
        """Return what each setting that is not the default was taken from: a variable, or ``gateway.toml``."""
        filed = dict.fromkeys(_filed(store / "gateway.toml", set(cls.model_fields)), "gateway.toml")
        variables = {name: _variable(name) for name in cls.model_fields}
        return filed | {name: variable for name, variable in variables.items() if variable in os.environ}

    @property
    def url(self) -> str:
        """The database's URL."""
        return self.database_url or f"sqlite:///{self.store / 'gateway.sqlite'}"

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the gateway."""
        return self.host in LOOPBACK

    @property
    def needs_tokens(self) -> bool:
        """Whether callers must bring a token."""
        return self.require_tokens or not self.is_loopback

    @property
    def jobs_dir(self) -> Path:
        """The folder of the jobs' folders."""
        return self.store / "jobs"


def _variable(name: str) -> str:
    return f"{ENV_PREFIX}{name}".upper()


def _filed(path: Path, known: set[str]) -> dict[str, Any]:
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error
    for key in document:
        if key not in known - {"store"}:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else f" Allowed are: {', '.join(sorted(known - {'store'}))}."
            raise UsageError(f"{path} has the key {key!r}, which is not known.{hint}")
    return document
