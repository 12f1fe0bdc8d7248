"""Will this batch fit: what is asked of a recipe or a training command, and the forecasts that answer it."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ddparity._errors import UsageError
from ddparity._recipe import EXAMPLE, load_recipe

from ._allowance import Allowance, default_allowance
from ._fit import Bands, Forecast, Point, forecast
from ._script import Script, read_command, try_script

_BUCKETS = 2
"""Times the parameters that DDP may add: its buckets, and the gradients beside them where they are no views."""
_IN_FLIGHT = 2
"""Gathered layers whose reduction may not have ended when the next one's begins."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is wanted.

    Attributes:
        batches: Samples of one forward of one rank, growing.
        seqs: Lengths of sequences; none leaves them as they are.
        capacity: Bytes of the device.
        nproc: Ranks; None for what the command launches.
        parallel: ``none``, ``ddp``, ``fsdp``, or None for what the script does.
        device: What it will run on, ``cuda`` or ``cpu``.
        allowance: For what a CPU cannot know; None for the default.
        measured: A batch and the bytes measured with it, in the place of an allowance.
        limits: Where the bands end.
        batch_dim: The dimension of a script's inputs that counts samples.
        timeout_s: Seconds after which a script is given up.
    """

    batches: list[int]
    seqs: list[int] = field(default_factory=list)
    capacity: int | None = None
    nproc: int | None = None
    parallel: str | None = None
    device: str = "cuda"
    allowance: Allowance | None = None
    measured: tuple[int, int] | None = None
    limits: Bands = field(default_factory=Bands)
    batch_dim: int = 0
    timeout_s: float = 300.0

    @property
    def lengths(self) -> list[int | None]:
        """The lengths to try; None alone for the one that there is."""
        return list(self.seqs) or [None]


def ask_recipe(question: Question, path: Path) -> list[Forecast]:
    """Answer for a recipe, one forecast a length.

    Raises:
        UsageError: The recipe cannot be run.
    """
    from . import _predict
    from ._shard import Sharding, pretended

    recipe = load_recipe(path)
    parallel, num_ranks = question.parallel or "none", _num_ranks(question, 1)
    found = []
    try:
        for seq in question.lengths:
            given: dict[str, Any] = {"device": question.device, "seq": seq}
            how, points = _predict.predict(recipe, question.batches, **given)
            removed = None
            if parallel == "fsdp":
                whole = points[-1].peak
                with pretended(num_ranks):
                    how, points = _predict.predict(recipe, question.batches, sharding=Sharding(num_ranks), **given)
                removed = 1 - points[-1].peak / whole
            found.append(_answer(question, points, how, parallel, num_ranks, removed, []))
    except UsageError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {str(error)[:300]}"
        raise UsageError(f"The recipe {str(path)!r} cannot be run ({reason}). One that can:\n{EXAMPLE}") from error
    return found


def ask_command(question: Question, command: list[str]) -> list[Forecast]:
    """Answer for a training command, one forecast a length.

    Raises:
        UsageError: Its first steps cannot be tried; the message shows a recipe.
    """
    script = read_command(command)
    num_ranks = _num_ranks(question, script.num_ranks)
    alone = question.parallel == "none"
    told = try_script(
        script,
        question.batches,
        seqs=question.seqs,
        device=question.device,
        shard=num_ranks if question.parallel == "fsdp" else 0,
        num_ranks=1 if alone else num_ranks,
        launched=not alone and (script.launched or num_ranks > 1) and question.parallel is None,
        batch_dim=question.batch_dim,
        timeout_s=question.timeout_s,
    )
    parallel = question.parallel or ("fsdp" if "fsdp" in told.wrappers else "ddp" if "ddp" in told.wrappers else "none")
    notes = [*_about_batch(question, script, told.own_batch, told.own_seq), *told.notes]
    found = []
    for seq in question.lengths:
        points = [point for point in told.points if point.seq == seq]
        removed = 1 - points[-1].peak / told.whole if told.whole else None
        found.append(_answer(question, points, told.how, parallel, num_ranks, removed, notes))
    return found


def _about_batch(question: Question, script: Script, batch: int, seq: int | None) -> list[str]:
    length = f", of length {seq}" if seq is not None else ""
    name = " ".join(script.target[:2]) if script.target[0] == "-m" else Path(script.target[0]).name
    return [f"the first forward of {name} has {batch} samples{length}; they stand for the batch"]


def _answer(
    question: Question,
    points: list[Point],
    how: str,
    parallel: str,
    num_ranks: int,
    removed: float | None,
    notes: list[str],
) -> Forecast:
    added = {}
    if parallel == "ddp":
        added["buckets of DDP, at most"] = _BUCKETS * points[-1].parameters
    elif parallel == "fsdp":
        added["reductions of FSDP in flight, at most"] = _IN_FLIGHT * points[-1].unit
    return forecast(
        points,
        how=how,
        added=added,
        capacity=question.capacity,
        allowance=question.allowance or default_allowance(question.device, num_ranks),
        measured=question.measured,
        limits=question.limits,
        parallel=parallel,
        num_ranks=num_ranks,
        removed=removed,
        notes=notes,
    )


def _num_ranks(question: Question, launched: int) -> int:
    num = question.nproc if question.nproc is not None else launched
    if question.parallel == "fsdp" and num < 2:
        raise UsageError("--parallel fsdp shards over ranks: say how many, such as --nproc 8.")
    if num < 1:
        raise UsageError(f"--nproc {num} is no number of ranks. Write 1 or more.")
    return 2 if question.parallel == "ddp" and num == 1 else num
