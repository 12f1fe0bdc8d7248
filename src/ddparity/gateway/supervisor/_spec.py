"""What a supervisor is told (``spec.json``) and what it tells (``result.json``)."""

import msgspec

SCHEMA = 1


class Phase(msgspec.Struct, kw_only=True, frozen=True):
    """One command of a job; a job is a few of them in a row: the gate, the training, the verdict.

    Attributes:
        name: ``gate``, ``train`` or ``verdict``.
        command: Program and arguments; no shell reads them.
        num_ranks: How many processes mark their end, over all nodes.
        attempts: How often the command may be started, each time with a fresh rendezvous.
        passes: Exit codes after which the job goes on, and the word for each; any other ends it.
        optional: The job goes on whatever the exit code is.
        env: Environment beside the job's own.
        without: Variables of the job that this command is not given.
        cwd: Where it runs, if not where the others do.
        watched: Whether the death of a rank ends the command; the gate starts its process more than once.
    """

    name: str
    command: list[str]
    num_ranks: int = 1
    attempts: int = 1
    passes: dict[int, str] = msgspec.field(default_factory=lambda: {0: "PASS"})
    optional: bool = False
    env: dict[str, str] = {}
    without: list[str] = []
    cwd: str | None = None
    watched: bool = True


class JobSpec(msgspec.Struct, kw_only=True, frozen=True):
    """All that a supervisor needs to know of a job.

    Attributes:
        uid: The job's own number, drawn at random: what its processes are known by.
        job_id: The name its owner gave it.
        phases: The commands, in order.
        env: The whole environment of the commands.
        cwd: Where they run.
        timeout_s: Seconds the whole job may take, or None.
        grace_s: Seconds a command has after it was asked to end, and a rank's fellows after the rank has died.
        isolation: ``auto`` (a cgroup where that is permitted), ``walk`` (never one), or ``pidns`` (a PID namespace).
        log_limit_bytes: How much of each log is kept: its end.
    """

    uid: str
    job_id: str
    phases: list[Phase]
    env: dict[str, str]
    cwd: str
    timeout_s: float | None = None
    grace_s: float = 10.0
    isolation: str = "auto"
    log_limit_bytes: int = 64 << 20
    schema: int = SCHEMA


class Attempt(msgspec.Struct, kw_only=True):
    """How one start of one command ended."""

    phase: str
    number: int
    started: float
    ended: float
    exit_code: int | None
    ended_by: str
    swept: int
    finished: int
    error: str | None = None


class Result(msgspec.Struct, kw_only=True):
    """How a job ended; written once, when no process of it is left.

    Attributes:
        state: COMPLETED, FAILED or CANCELLED.
        exit_code: That of the last command; negative for a signal.
        error: What went wrong, for people, or None.
        notes: What is worth knowing although nothing went wrong.
        phases: What became of each phase, by name.
        swept: How many processes had to be killed after their command had ended.
    """

    state: str
    exit_code: int | None
    started: float
    ended: float
    error: str | None = None
    notes: list[str] = []
    phases: dict[str, str] = {}
    attempts: list[Attempt] = []
    swept: int = 0
    schema: int = SCHEMA


class Progress(msgspec.Struct, kw_only=True):
    """Where a running job stands: the phase, which attempt it is, and since when."""

    phase: str
    attempt: int
    since: float


class Birth(msgspec.Struct, kw_only=True):
    """Which process supervises: its id, when it started, the boot of the machine, the cgroup of the job."""

    pid: int
    start: int
    boot_id: str
    time: float
    cgroup: str | None = None


class Mark(msgspec.Struct, kw_only=True):
    """What a rank wrote when it started."""

    pid: int
    start: int
    time: float
    node: str = "0"


class NodeError(msgspec.Struct, kw_only=True):
    """What went wrong on one node, as its supervisor saw it."""

    error: str
    time: float


class RankEnding(msgspec.Struct, kw_only=True):
    """What a rank wrote when it came to its end by itself."""

    finished: bool
    time: float
    error: str | None = None


class RankFailure(msgspec.Struct, kw_only=True):
    """What the agent wrote of a rank that failed: exit code, negative for a signal, and when."""

    exit_code: int
    time: float
