"""What to review."""

import difflib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ddparity._errors import UsageError
from ddparity.preflight._rows import ROWS, RowKind
from ddparity.trials._rungs import LadderSpec, Rung, rungs_of
from ddparity.trials._store import Store


@dataclass(frozen=True, kw_only=True)
class PreflightSpec:
    """What to review before it is launched.

    Attributes:
        command: The training command without a launcher, with the ladder's placeholders and ``{checkpoints}``.
        recipe: A recipe in place of the command, or None.
        store: Where the trials go.
        nproc: Number of processes of the launch.
        global_batch: Samples of a step over all ranks, or None if the command does not say it.
        accum: Micro-batches of the ladder's rung with micro-batches.
        quick: Only the rows that take little time, and of the ladder only the target.
        only: Names of the rows to settle, or empty for all.
        steps: Training steps of a rehearsal.
        at_step: Training steps after which a fault is injected; a checkpoint has to be written before.
        drill_timeout_s: Time-out of the process groups while a fault is injected, in seconds.
        timeout_s: Seconds after which a command is ended.
        fresh: Run everything although the store has trials of it.
        name: What the names of the trials begin with.
    """

    command: list[str]
    store: Store
    recipe: Path | None = None
    nproc: int = 2
    global_batch: int | None = None
    accum: int = 4
    quick: bool = False
    only: tuple[str, ...] = ()
    steps: int = 12
    at_step: int = 30
    drill_timeout_s: float = 10.0
    timeout_s: float = 600.0
    fresh: bool = False
    name: str = "preflight"

    def __post_init__(self) -> None:
        names = [kind.name for kind in ROWS]
        for name in self.only:
            if name not in names:
                near = difflib.get_close_matches(name, names, n=1)
                hint = f" Did you mean {near[0]}?" if near else ""
                raise UsageError(f"--only {name!r} is no row.{hint} Rows are: {', '.join(names)}.")
        if self.nproc < 2:
            raise UsageError(f"--nproc {self.nproc} cannot be used: a preflight is the review of 2 processes or more.")
        if self.steps < 6:
            raise UsageError(f"--steps {self.steps} cannot be used: memory is judged over 6 steps or more.")
        if self.at_step < 1:
            raise UsageError(f"--at-step {self.at_step} cannot be used: at least one step has to be done before.")
        if not self.drill_timeout_s > 0:
            raise UsageError(f"--drill-timeout {self.drill_timeout_s} cannot be used: give seconds, more than 0.")
        _ = self.target  # a command that cannot be used is refused before anything runs

    def climb(self, *nproc: int) -> LadderSpec:
        """Return the ladder over these numbers of processes."""
        return LadderSpec(
            command=self.command,
            recipe=self.recipe,
            store=self.store,
            nproc=nproc,
            global_batch=self.global_batch,
            accum=self.accum,
            timeout_s=self.timeout_s,
            fresh=self.fresh,
            name=self.name,
        )

    @property
    def ladder(self) -> LadderSpec:
        """The ladder that leads to the target."""
        steps = [1]
        while steps[-1] * 2 < self.nproc:
            steps.append(steps[-1] * 2)
        return self.climb(self.nproc) if self.quick else self.climb(*steps, self.nproc)

    @cached_property
    def alone(self) -> Rung:
        """The rung of the control."""
        return rungs_of(self.climb(self.nproc))[0]

    @cached_property
    def target(self) -> Rung:
        """The rung that is the launch."""
        return next(rung for rung in rungs_of(self.climb(self.nproc)) if rung.launched and rung.nproc == self.nproc)

    def wants(self, kind: RowKind) -> bool:
        """Whether a row is asked for."""
        return kind.name in self.only if self.only else kind.quick or not self.quick

    @property
    def saves(self) -> bool:
        """Whether the command says where checkpoints go."""
        return any("{checkpoints}" in word for word in self.target.command)
