"""The rungs of a ladder: for each its command, made from one with placeholders, or the reason why it is left out."""

import difflib
import math
import re
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from ddparity._errors import UsageError
from ddparity.trace._windows import parse_windows
from ddparity.trials._launch import CHECKPOINTS
from ddparity.trials._store import Store, check_name

PLACEHOLDERS = ("local_batch", "global_batch", "nproc", "accum", "dtype", "parallel", "checkpoints")
_PLACEHOLDER = re.compile(r"\{([A-Za-z_]\w*)\}")
_PYTHON = re.compile(r"(?:python|pypy)(?:\d+(?:\.\d+)?)?\Z")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_LAUNCHERS = {"torchrun", "accelerate", "deepspeed", "mpirun", "mpiexec", "srun"}
MEANINGS = {
    0: "the single-device path itself does not repeat itself: fix that first",
    1: "rounding, overflow, an unstable operation",
    2: "loss normalisation, batch-coupled layers, accumulation",
    3: "the wrapper, parameter registration, an optimizer built at the wrong time",
    4: "communication, data sharding, randomness per rank",
    5: "uneven shards, groups, time-outs",
    6: "placement and group errors",
    7: "precision",
}
"""What a deviation at a rung means."""
MEANS_AS_RANKS = "weighting of the ranks' losses, layers that couple samples: no communication is involved"
RECIPE = ["-m", "ddparity.workloads.recipe"]


@dataclass(frozen=True, kw_only=True)
class LadderSpec:
    """What to climb.

    Attributes:
        command: The training command without a launcher, with placeholders; may be empty where there is a recipe.
        recipe: A file with ``model()``, ``batch(n)``, ``loss(model, batch)``, ``optimizer(model)``, or None.
        store: Where the trials go.
        nproc: Numbers of processes to run.
        global_batch: Samples of a step over all ranks and micro-batches, or None if the command does not say it.
        accum: Micro-batches of rung 2.
        dtypes: The training's dtype, then the target's, if the command has a place for them.
        parallel: The parallelism up to rung 5, then the target's, if the command has a place for them.
        steps: Steps in which tensors are recorded, as for ``record``.
        full: Run the trainings to their end and do not stop them after the recorded steps.
        timeout_s: Seconds after which a rung's command is ended, or None.
        fresh: Run every rung although the store has a trial of it.
        name: What the names of the trials begin with.
    """

    command: list[str]
    store: Store
    nproc: tuple[int, ...] = (1, 2)
    global_batch: int | None = None
    accum: int = 4
    dtypes: tuple[str, ...] = ("float32",)
    parallel: tuple[str, ...] = ()
    recipe: Path | None = None
    steps: str = "3"
    full: bool = False
    timeout_s: float | None = 600.0
    fresh: bool = False
    name: str = "ladder"

    def __post_init__(self) -> None:
        check_name(self.name)
        parse_windows(self.steps)
        if not self.nproc or min(self.nproc) < 1:
            raise UsageError("--nproc needs numbers of processes, each at least 1. For example: --nproc 1,2,4")
        if self.global_batch is not None and self.global_batch < 1:
            raise UsageError(
                f"--global-batch {self.global_batch} cannot be used: at least 1 sample has to be trained on."
            )
        if self.accum < 2:
            raise UsageError(
                f"--accum {self.accum} cannot be used: rung 2 cuts the batch into at least 2 micro-batches."
            )
        if self.recipe is not None and (self.command or self.global_batch is None):
            raise UsageError(
                "--recipe stands in place of the command and needs --global-batch, as in: "
                "ddparity ladder --nproc 1,2 --global-batch 32 --recipe recipe.py"
            )
        if not self.dtypes:
            raise UsageError("--dtype needs a name. For example: --dtype float32,bfloat16")

    @property
    def stop_after_steps(self) -> int | None:
        """Training steps after which a rung is over: those that are recorded."""
        return None if self.full else max(stop for _, stop in parse_windows(self.steps))

    def as_command(self) -> str:
        """Return the command line that climbs this ladder; what is the default is left out."""
        options = {
            "--nproc": ",".join(map(str, self.nproc)),
            "--global-batch": self.global_batch,
            "--accum": self.accum,
            "--dtype": ",".join(self.dtypes),
            "--parallel": ",".join(self.parallel),
            "--recipe": self.recipe,
            "--steps": self.steps,
            "--timeout": None if self.timeout_s is None else f"{self.timeout_s:g}",
            "--name": self.name,
        }
        defaults = {"--accum": 4, "--dtype": "float32", "--steps": "3", "--timeout": "600", "--name": "ladder"}
        given = [(name, str(value)) for name, value in options.items() if value not in (None, "", defaults.get(name))]
        words = [word for pair in given for word in pair] + (["--full"] if self.full else [])
        command = f" -- {shlex.join(self.command)}" if self.command else ""
        return shlex.join(["ddparity", "ladder", *words]) + self.store.option + command


@dataclass(frozen=True, kw_only=True)
class Rung:
    """One rung.

    Attributes:
        number: As in the documentation of the ladder, 0 to 7.
        title: What is run.
        nproc: Number of processes.
        accum: Number of micro-batches.
        dtype: The training's dtype.
        launched: Whether it runs under torchrun.
        as_ranks: Number of ranks whose arithmetic one process repeats.
        promoted: Whether the recorder promotes it to float64.
        parallel: The parallelism.
        command: What is run, or empty if it is left out.
        skipped: Why it is left out.
    """

    number: int
    title: str
    nproc: int = 1
    accum: int = 1
    dtype: str = ""
    launched: bool = False
    as_ranks: int = 1
    promoted: bool = False
    parallel: str = ""
    command: list[str] = field(default_factory=list)
    skipped: str = ""

    @property
    def label(self) -> str:
        """What the trial's name ends with."""
        return self.shown + (f"-nproc{self.nproc}" if self.nproc > 1 else "")

    @property
    def shown(self) -> str:
        """The rung's number as the documentation has it: 2b is the arithmetic of ranks in one process."""
        return f"{self.number}b" if self.as_ranks > 1 else f"{self.number}"

    @property
    def meaning(self) -> str:
        """What a deviation here means."""
        return MEANS_AS_RANKS if self.as_ranks > 1 else MEANINGS[self.number]


def rungs_of(spec: LadderSpec) -> list[Rung]:
    """Return every rung in order, those that are left out too.

    Raises:
        UsageError: The command has a launcher or an unknown placeholder, or the batch cannot be shared evenly.
    """
    template = _Template(spec)
    several = sorted({n for n in spec.nproc if n > 2})
    rungs = [
        Rung(number=0, title="one process, run twice: the control"),
        Rung(number=1, title="one process, in float64", promoted=True),
        Rung(
            number=2,
            title=f"one process, {spec.accum} micro-batches",
            accum=spec.accum,
            skipped=template.lacks("accum"),
        ),
        _as_ranks(spec),
        Rung(number=3, title="one process under torchrun", launched=True, skipped=_unlisted(spec, 1)),
        Rung(number=4, title="two processes", nproc=2, launched=True, skipped=_unlisted(spec, 2)),
        *(Rung(number=5, title=f"{n} processes", nproc=n, launched=True) for n in several),
    ]
    if not several:
        rungs.append(Rung(number=5, title="more processes", skipped="--nproc lists no more than 2"))
    rungs.append(_in_target_parallelism(spec, template))
    rungs.append(_in_target_dtype(spec, template))
    ready = [rung if rung.skipped else template.filled(rung) for rung in rungs]
    template.check_division([rung for rung in ready if not rung.skipped])
    return ready


def _unlisted(spec: LadderSpec, nproc: int) -> str:
    return "" if nproc in spec.nproc else f"--nproc does not list {nproc}"


def _as_ranks(spec: LadderSpec) -> Rung:
    num = min((n for n in spec.nproc if n > 1), default=1)
    lacking = "" if spec.recipe is not None else "the judge computes it from the ranks' digests; --recipe reruns it"
    title = f"one process, the arithmetic of {num} ranks"
    return Rung(number=2, title=title, as_ranks=max(num, 2), skipped=lacking or ("" if num > 1 else "one rank only"))


def _in_target_parallelism(spec: LadderSpec, template: "_Template") -> Rung:
    lacking = template.lacks("parallel") or ("" if len(spec.parallel) > 1 else "--parallel names no second one")
    num = max(spec.nproc)
    title = "the target parallelism" if lacking else f"{num} processes, {spec.parallel[-1]}"
    target = spec.parallel[-1] if spec.parallel else ""
    return Rung(number=6, title=title, nproc=num, launched=True, parallel=target, skipped=lacking)


def _in_target_dtype(spec: LadderSpec, template: "_Template") -> Rung:
    lacking = template.lacks("dtype") or ("" if len(spec.dtypes) > 1 else "--dtype names no second dtype")
    title = "the target dtype" if lacking else f"one process in {spec.dtypes[-1]}"
    return Rung(number=7, title=title, dtype=spec.dtypes[-1], skipped=lacking)


class _Template:
    """The command with its placeholders."""

    def __init__(self, spec: LadderSpec) -> None:
        self._spec = spec
        recipe = [*RECIPE, str(spec.recipe), "--batch", "{global_batch}", "--accum", "{accum}"]
        self._env, self._python, self._words = _taken_apart(spec.command if spec.recipe is None else recipe)
        self._used = {name for word in self._words for name in _PLACEHOLDER.findall(word)}
        for name in self._used - set(PLACEHOLDERS):
            near = difflib.get_close_matches(name, PLACEHOLDERS, n=1)
            hint = f" Did you mean {{{near[0]}}}?" if near else ""
            allowed = ", ".join(f"{{{each}}}" for each in PLACEHOLDERS)
            raise UsageError(f"The placeholder {{{name}}} is not known.{hint} Allowed are: {allowed}.")
        if "parallel" in self._used and not spec.parallel:
            raise UsageError("The command has {parallel}: name what goes there, for example --parallel ddp,fsdp")
        wanting = self._used & {"local_batch", "global_batch"}
        if wanting and spec.global_batch is None:
            raise UsageError(f"The command has {{{min(wanting)}}}: say how large it is, for example --global-batch 32")

    def lacks(self, name: str) -> str:
        """Say that the command has no place for something, or nothing if it has one."""
        return "" if name in self._used else f"the command has no {{{name}}}"

    def filled(self, rung: Rung) -> Rung:
        """Return the rung with its command."""
        dtype = rung.dtype or self._spec.dtypes[0]
        parallel = rung.parallel or next(iter(self._spec.parallel), "")
        values: dict[str, object] = {"nproc": rung.nproc, "accum": rung.accum, "dtype": dtype, "parallel": parallel}
        values["checkpoints"] = CHECKPOINTS  # filled in where the trial is launched
        if self._spec.global_batch is not None:
            share = self._spec.global_batch // (rung.nproc * rung.accum)
            values |= {"global_batch": self._spec.global_batch, "local_batch": share}
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(rung.nproc)]
        command = [
            *self._env,
            self._python,
            *(launcher if rung.launched else []),
            *(_fill(w, values) for w in self._words),
            *(["--as-ranks", str(rung.as_ranks)] if rung.as_ranks > 1 else []),
        ]
        return replace(rung, dtype=dtype, parallel=parallel, command=command)

    def check_division(self, rungs: list[Rung]) -> None:
        """Refuse a global batch that some rung cannot share evenly; name the sizes that all can."""
        batch = self._spec.global_batch
        if batch is None or not ({"local_batch"} & self._used or self._spec.recipe is not None):
            return
        parts = {rung.shown: rung.nproc * rung.accum * rung.as_ranks for rung in rungs}
        bad = next((rung for rung in rungs if batch % parts[rung.shown]), None)
        if bad is None:
            return
        unit = math.lcm(*parts.values())
        below = batch // unit * unit
        sizes = ", ".join(str(size) for size in (below - unit, below, below + unit, below + 2 * unit) if size > 0)
        what = f"{bad.accum} micro-batches" if bad.accum > 1 else f"{bad.nproc} processes"
        raise UsageError(
            f"--global-batch {batch} cannot be shared evenly by the {what} of rung {bad.number}. "
            f"Sizes that every rung can share: {sizes}."
        )


def _fill(word: str, values: Mapping[str, object]) -> str:
    return _PLACEHOLDER.sub(lambda match: str(values[match[1]]), word)


def _taken_apart(command: list[str]) -> tuple[list[str], str, list[str]]:
    """Return what sets the environment, the interpreter, and the script or module with its arguments."""
    words = list(command)
    env: list[str] = []
    if words and Path(words[0]).name == "env":
        end = next((i for i, word in enumerate(words[1:], start=1) if not _ASSIGNMENT.match(word)), len(words))
        env, words = words[:end], words[end:]
    python = sys.executable
    if words and _PYTHON.match(Path(words[0]).name):
        python, words = words[0], words[1:]
        words = words[1:] if words[:1] == ["-u"] else words
    if words and (words[0].endswith(".py") or (words[0] == "-m" and len(words) > 1)):
        if words[0] == "-m" and words[1] in ("torch.distributed.run", "torch.distributed.launch"):
            raise UsageError(_not_a_script(f"-m {words[1]}"))
        return env, python, words
    raise UsageError(_not_a_script(words[0] if words else ""))


def _not_a_script(first: str) -> str:
    what = (
        "is a launcher, and the ladder launches"
        if Path(first).name in _LAUNCHERS or first.startswith("-m ")
        else "is no script"
    )
    return (
        f"{first!r} {what}. Give the script or module alone, as in: "
        "ddparity ladder --nproc 1,2 --global-batch 32 -- train.py --batch-size {local_batch}"
    )
