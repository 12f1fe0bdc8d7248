"""What a trial consists of on disk: names of the files, the records in them, their limits.

A trial is a folder::

    trial.json               TrialFacts: one file a trial, written by the recorder outside
    rank-00000/rank.json     RankFacts: one file a rank, written by the rank itself
    rank-00000/*.arrow       five Arrow IPC streams: SITES, DIGESTS, SAMPLES, LOADS, EVENTS
    workers/rank-00000/*     what loader workers say of their random generators, a JSON object a line

Everything here is data. Nothing in a trace is ever unpickled or executed.
"""

from enum import StrEnum
from typing import Any

import msgspec

SCHEMA_VERSION = 1
SKETCH_SIZE = 128
"""Numbers in a sketch, each a float64: 1 KiB a digest."""


class Site(StrEnum):
    """The points of a training step at which something is recorded, in the order of computation."""

    PARAMETER = "parameter"
    BUFFER_AT_START = "buffer_at_start"  # before the first step of a window
    ACTIVATION = "activation"
    ACTIVATION_GRADIENT = "activation_gradient"
    LOCAL_GRADIENT = "local_gradient"
    SYNCED_GRADIENT = "synced_gradient"
    STEP_GRADIENT = "step_gradient"
    OPTIMIZER_STATE = "optimizer_state"
    PARAMETER_AFTER = "parameter_after"
    PARAMETER_LEFT = "parameter_left"  # as the next step finds it, where that is not what the optimizer left
    BUFFER = "buffer"
    MARK = "mark"


class Event(StrEnum):
    """The kinds of rows in the EVENTS stream."""

    BACKWARD = "backward"  # value: the loss; data: {"batch", "backward", "shape"}
    OPTIMIZER = "optimizer"  # data: {"groups": [{"lr": ..., ...}], "params": [...], "counted": {steps so far: name}}
    CLIP = "clip"  # value: total norm; data: {"max_norm", "norm_type"}
    UNSCALE = "unscale"  # value: loss scale
    SCALE = "scale"  # value: loss scale after update
    RNG = "rng"  # data: {"torch": hex, "numpy": hex, "python": hex, ...}
    WRAP = "wrap"  # name: wrapper class; data: {"root", "world_size", ...}
    MODEL = "model"  # data: modules, parameters, ties, of one root module
    GRADIENT_ORDER = "gradient_order"  # data: {"order": names in the order in which backward reached them}
    RESUME = "resume"  # name: what was loaded
    REQUIRES_GRAD = "requires_grad"  # data: {"frozen": [...], "unfrozen": [...]}
    WINDOW = "window"  # data: {"open": bool, "reason"}
    METRIC = "metric"  # name: metric; value; data: {"at", "reduced", "count"} where the script read it by itself, else
    # {"own_step", "compared"}: the script's own count; False where it is no result of an evaluation
    EVAL_REDUCE = "eval_reduce"  # an all-reduce of a few numbers in an evaluation; data: {"before", "after"}
    EVAL_DROPPED = "eval_dropped"  # value: rows of an evaluation that a framework repeated, and took out of its results
    NOT_RECORDED = "not_recorded"  # name: what; data: {"reason"}
    LOADER = (
        "loader"  # name: number of a loader; an iteration over it begins; data: {"epoch", "dataset", "sampler", ...}
    )
    LOADER_END = "loader_end"  # name: its number; data: {"epoch", "batches"}: it was exhausted
    LOADER_USE = "loader_use"  # name: its number; data: {"training"}: what it delivered entered a model
    STREAMS = "streams"  # name: its number; data: {"epoch", "worker", "first", "streams": {name: [before, after]}}
    MEMORY = "memory"  # name: step or evaluation; value: bytes held at its end; data: {"source", "points", ...}
    HOLDER = "holder"  # name: a variable that holds more and more; data: {"bytes", "nodes", "tensors", "lines", ...}
    STEP = "step"  # end of a training step
    SETTLED = "settled"  # the next step has begun: whatever changed since the optimizer's step is recorded
    START_OVER = "start_over"  # all models so far are gone and none had trained a step: what was recorded is void
    DISABLED = "disabled"  # the recorder failed and switched itself off


class TrialStatus(StrEnum):
    """How the launched command ended."""

    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    TIMED_OUT = "TIMED_OUT"
    INTERRUPTED = "INTERRUPTED"


class RankStatus(StrEnum):
    """How a rank ended, as it said itself; a rank that was killed still says RUNNING."""

    RUNNING = "RUNNING"
    FINISHED = "FINISHED"
    RAISED = "RAISED"


class RankFacts(msgspec.Struct, kw_only=True):
    """Facts of one rank (``rank.json``), written when recording starts and again when the process ends."""

    schema: int = SCHEMA_VERSION
    rank: int
    local_rank: int
    world_size: int
    pid: int
    hostname: str
    status: RankStatus = RankStatus.RUNNING
    error_type: str | None = None
    error_at: list[str] = []
    """Stack of the error as ``file:line in function``, innermost last, without locals."""
    backend: str | None = None
    master: str | None = None
    device: str = "cpu"
    device_name: str = ""
    versions: dict[str, str] = {}
    seeds: dict[str, int] = {}
    env: dict[str, str] = {}
    settings: dict[str, Any] = {}
    hyperparameters: dict[str, Any] = {}
    """Settings that a framework's callback told: numbers, switches, short words."""
    batch_shapes: dict[str, list[int]] = {}
    """Root module -> shape of the first tensor that entered it."""
    argv: list[str] = []
    started: float = 0.0
    ended: float | None = None
    partial: list[str] = []
    """Reasons why this rank's trace is not whole; empty when it is."""
    fingerprints: dict[str, str] = {}
    """Pieces of the user's code, such as ``train.py::loss_fn``, and files named on the command line -> hash."""
    sources: dict[str, str] = {}
    """The files they came from -> hash of the whole file."""


class GitFacts(msgspec.Struct, kw_only=True):
    """State of the repository the script stands in."""

    commit: str | None = None
    dirty: bool | None = None
    reason: str = ""


class ControlProof(msgspec.Struct, kw_only=True):
    """Whether a control may judge others: it was run twice and the two runs agreed."""

    status: str
    """PROVED, NOT_PROVED (``--no-prove``) or FAILED."""
    reason: str = ""
    repeat: str | None = None
    """Id of the second run."""


class FloorTrials(msgspec.Struct, kw_only=True):
    """The runs beside a control that measure what rounding makes of it (``--floor``); ids of trials."""

    float64: str | None = None
    """The control in float64."""
    moved: str | None = None
    """The control with its inputs moved by one unit in the last place."""


class TrialFacts(msgspec.Struct, kw_only=True):
    """Facts of a trial (``trial.json``), written by ``ddparity record`` around the command."""

    schema: int = SCHEMA_VERSION
    id: str
    name: str
    control: bool = False
    command: list[str]
    cwd: str
    status: TrialStatus = TrialStatus.RUNNING
    exit_code: int | None = None
    signal: str | None = None
    started: float = 0.0
    ended: float | None = None
    steps: str = "3"
    level: str = "activations"
    stop_after_steps: int | None = None
    ddparity: str = ""
    script: str | None = None
    script_sha256: str | None = None
    git: GitFacts = msgspec.field(default_factory=GitFacts)
    env: dict[str, str] = {}
    proof: ControlProof | None = None
    dtype: str | None = None
    """``float64`` if the recorder promoted the training (``--dtype``)."""
    neutral_dropout: bool = False
    """Whether the recorder switched random modules off (``--neutral-dropout``)."""
    floors: FloorTrials | None = None
    pinned: str | None = None
    """Id of the control whose banked batches were handed out in place of this trial's own (``--pinned``)."""
    batch_dim: int = 0
    """Dimension of the inputs along which the samples lie."""
    synthetic: bool = False
    """Whether batches were made up in place of what its loaders hand out (``ddparity repro``)."""
    against: str | None = None
    """Id of the control that was known when this trial was recorded; parts and slices are keyed on its indices."""
    notes: list[str] = []


class CaptureConfig(msgspec.Struct, kw_only=True):
    """What ``ddparity record`` tells the recorder inside, as JSON in the variable ``DDPARITY_CAPTURE``."""

    trial_dir: str
    steps: str = "3"
    level: str = "activations"
    stop_after_steps: int | None = None
    interrupt_at: int | None = None
    """End the run when so many steps are done, before the next begins."""
    interrupt_rank: int | None = None
    """Kill this rank there instead of ending all."""
    interrupt_how: str = "kill"
    """What becomes of that rank: ``kill``, ``exit``, ``stop`` (SIGSTOP) or ``stall`` (in its loader, if it has one)."""
    group_timeout_s: float | None = None
    """Time-out of every process group, in place of the script's own."""
    wrapper: dict[str, Any] = {}
    """Keyword arguments of DistributedDataParallel, in place of the script's own."""
    fixed_batch: bool = False
    """Hand out the first batch in every step."""
    loader_epochs: int | None = None
    """End the run after so many passes over the training data."""
    loaders_only: bool = False
    """Run the loaders out after the first training batch, then end."""
    batch_dim: int = 0
    dtype: str | None = None
    """``float64``: promote parameters, buffers and inputs."""
    perturb: bool = False
    """Move the inputs by one unit in the last place."""
    neutral_dropout: bool = False
    """Switch random modules off."""
    bank: bool = False
    """Keep the batches of the recorded steps in the private folder."""
    pinned: str | None = None
    """Folder of the control whose banked batches are handed out."""
    describe_inputs: bool = False
    """Describe what the script reads and is handed in the private folder: shapes, ranges, padding; no values."""
    synthetic: str | None = None
    """File of descriptions from which inputs are made up, in place of the script's own."""
    control: bool = False
    """Whether others will be held against this trial: it keeps what they need to find their place in it."""
    against: str | None = None
    """Folder of the control that this trial will be held against, if one is known already."""
    hang_after_s: float = 60.0
    """Quiet for longer than this, a process writes down where its threads stand."""
