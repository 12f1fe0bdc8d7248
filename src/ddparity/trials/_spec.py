"""What to run as a trial: the settings of one ``ddparity record``."""

from dataclasses import dataclass, field
from typing import Any

from ddparity._errors import UsageError
from ddparity.trace._windows import parse_windows
from ddparity.trials._store import Store, check_name

ON_HANG = ("dump", "stop")
LEVELS = ("gradients", "activations")
DTYPES = ("float64",)


@dataclass(frozen=True, kw_only=True)
class RecordSpec:
    """What to run and what to record of it.

    Attributes:
        command: The command and its arguments, as given to the operating system (no shell).
        store: Where the trial goes.
        name: Name of the trial.
        control: Whether others will be held against it.
        prove: Whether a control is run a second time and compared with itself.
        steps: A number of steps, or windows such as ``0:3,500:503``, in which tensors are recorded.
        level: ``gradients`` or ``activations`` (both).
        stop_after_steps: End the run after so many training steps, or None.
        interrupt_at: End the run when so many steps are done and the next begins, or None.
        interrupt_rank: Kill this rank there, with SIGKILL, instead of ending all.
        interrupt_how: ``kill``, ``exit`` (code 23), ``stop`` (SIGSTOP) or ``stall`` (for good) that rank.
        group_timeout_s: Time-out of every process group in place of the script's own, in seconds, or None.
        wrapper: Keyword arguments of DistributedDataParallel in place of the script's own.
        fixed_batch: Hand out the first batch in every step.
        loader_epochs: End the run after so many passes over the training data, or None.
        loaders_only: Run the loaders out after the first training batch, then end the run.
        timeout_s: Seconds after which the command is ended, or None.
        batch_dim: Dimension of the inputs along which the samples lie.
        dtype: ``float64`` to promote the training, or None to leave it as it is.
        neutral_dropout: Switch random modules off.
        floor: Beside a control, record it in float64 and with its inputs moved by one unit in the last place.
        perturb: Move the inputs by one unit in the last place: one of the runs that ``floor`` asks for.
        bank: Keep a control's batches of the recorded steps, for candidates to be pinned to.
        pinned: Hand out the control's banked batches, each rank its rows, in place of the script's own.
        describe_inputs: Describe what the script reads and is handed, without its values, in the private folder.
        synthetic: File of such descriptions, from which inputs are made up in place of the script's own.
        hang_after_s: Seconds without a call or a step on any rank after which the run is said to hang.
        on_hang: ``dump`` (say where every rank stands, and leave it) or ``stop`` (end it, too).
        probe: Measure latency and bandwidth between two processes of this machine after a run that ended well.
        quiet: Say nothing, and put the command's output into ``private/output.log`` of the trial.
    """

    command: list[str]
    store: Store
    name: str
    control: bool = False
    prove: bool = True
    steps: str = "3"
    level: str = "activations"
    stop_after_steps: int | None = None
    interrupt_at: int | None = None
    interrupt_rank: int | None = None
    interrupt_how: str = "kill"
    group_timeout_s: float | None = None
    wrapper: dict[str, Any] = field(default_factory=dict)
    fixed_batch: bool = False
    loader_epochs: int | None = None
    loaders_only: bool = False
    timeout_s: float | None = None
    batch_dim: int = 0
    dtype: str | None = None
    neutral_dropout: bool = False
    floor: bool = False
    perturb: bool = False
    bank: bool = False
    pinned: bool = False
    describe_inputs: bool = False
    synthetic: str | None = None
    hang_after_s: float = 60.0
    on_hang: str = "dump"
    probe: bool = False
    quiet: bool = False

    def __post_init__(self) -> None:
        check_name(self.name)
        parse_windows(self.steps)
        if not self.command:
            raise UsageError("No command to record. Put it after --, as in: ddparity record -- python train.py")
        if self.level not in LEVELS:
            raise UsageError(f"--level {self.level!r} is not known. Allowed are: {', '.join(LEVELS)}.")
        if self.dtype is not None and self.dtype not in DTYPES:
            raise UsageError(
                f"--dtype {self.dtype!r} is not known. Allowed is float64, which promotes the training; "
                "without --dtype it runs as the script says."
            )
        if self.floor and not self.control:
            raise UsageError("--floor measures the floor of a control: give it together with --control.")
        if self.bank and not self.control:
            raise UsageError("--bank keeps a control's batches: give it together with --control.")
        if self.stop_after_steps is not None and self.stop_after_steps < 1:
            raise UsageError(f"--stop-after-steps {self.stop_after_steps} cannot be used: at least 1 step has to run.")
        if self.timeout_s is not None and not self.timeout_s > 0:
            raise UsageError(f"--timeout {self.timeout_s} cannot be used: give seconds, more than 0.")
        if not self.hang_after_s > 0:
            raise UsageError(f"--hang-after {self.hang_after_s} cannot be used: give seconds, more than 0.")
        if self.on_hang not in ON_HANG:
            raise UsageError(f"--on-hang {self.on_hang!r} is not known. Allowed are: {', '.join(ON_HANG)}.")
        if self.batch_dim < 0:
            raise UsageError(f"--batch-dim {self.batch_dim} cannot be used: dimensions count from 0.")
