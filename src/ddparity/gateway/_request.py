"""What a caller may ask for, checked at the door."""

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

JOB_ID_PATTERN = r"^[A-Za-z0-9_][A-Za-z0-9._:-]{0,127}$"
"""Other names would need quoting in paths, or be mistaken for options and hidden files."""
RESERVED = frozenset({"submit", "status"})
MAX_WORLD_SIZE = 4096

JobId = Annotated[
    str,
    StringConstraints(pattern=JOB_ID_PATTERN),
    Field(description="The job's name among yours: letters, digits, '_', '.', ':' and '-'.", examples=["digits-1"]),
]
WorldSize = Annotated[
    int,
    Field(ge=1, le=MAX_WORLD_SIZE, description="How many processes train, over all nodes.", examples=[2]),
]
BatchSize = Annotated[
    int, Field(ge=1, le=65536, description="How many samples one process takes a step.", examples=[32])
]
Argument = Annotated[str, StringConstraints(max_length=4096, pattern=r"^[^\x00]*$")]
EnvName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,127}$")]
EnvValue = Annotated[str, StringConstraints(max_length=8192, pattern=r"^[^\x00]*$")]


class JobSettings(BaseModel):
    """What may be said of a job beside its name and size."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    learning_rate: float | None = Field(
        None, gt=0, le=1e6, allow_inf_nan=False, description="The optimizer's step.", examples=[0.05]
    )
    entry: str = Field(
        "digits",
        min_length=1,
        max_length=1024,
        pattern=r"^[^\x00]+$",
        description="A registered workload, or a script below one of the gateway's roots.",
        examples=["digits", "train.py"],
    )
    args: list[Argument] = Field(
        default_factory=list[str],
        max_length=256,
        description="Arguments of the script, with {batch_size}, {global_batch}, {world_size} filled in.",
    )
    env: dict[EnvName, EnvValue] = Field(
        default_factory=dict[str, str],
        max_length=64,
        description="Environment variables; only names that the gateway allows.",
    )
    nodes: int = Field(1, ge=1, le=1024, description="Over how many machines the processes are spread.")
    timeout_s: float | None = Field(None, gt=0, le=30 * 86400, allow_inf_nan=False, description="Longest running time.")
    grace_s: float = Field(10.0, ge=0, le=600, allow_inf_nan=False, description="Time to end after being asked to.")
    max_restarts: int = Field(0, ge=0, le=20, description="How often a failed training starts again.")
    priority: int = Field(0, ge=-100, le=100, description="Higher goes first.")
    engine: Literal["local", "slurm"] = Field("local", description="What runs the job.")
    gate: Literal["on", "off"] = Field("on", description="Whether the single-device path is proved first.")
    record: bool = Field(False, description="Whether the training is recorded and held against one device.")


class JobRequest(JobSettings):
    """All that makes a job."""

    job_id: JobId
    world_size: WorldSize
    batch_size: BatchSize

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.job_id in RESERVED:
            raise ValueError(f"job_id cannot be one of: {', '.join(sorted(RESERVED))}")
        if self.world_size % self.nodes:
            raise ValueError(f"world_size {self.world_size} cannot be spread evenly over {self.nodes} nodes")
        if self.nodes > 1 and self.engine == "local":
            raise ValueError("engine 'local' has one node; use engine 'slurm' for more")
        return self

    @property
    def global_batch(self) -> int:
        """Samples of one step over all processes."""
        return self.batch_size * self.world_size
