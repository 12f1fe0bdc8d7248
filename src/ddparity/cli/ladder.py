"""``ddparity ladder``: climb from one device to many, one variable a rung, and stop where it deviates."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ddparity._errors import UsageError, exit_code_of
from ddparity._plain import plain
from ddparity.cli._busy import Busy
from ddparity.cli._options import StoreOption
from ddparity.cli._output import emit, emit_json, table

if TYPE_CHECKING:
    from ddparity.trials._ladders import LadderResult, RungResult

# What stands behind the first word of the command is the command's own, -- or not.
CONTEXT_SETTINGS = {"allow_interspersed_args": False}
_GLYPHS = {"PASS": "✓", "DEVIATES": "✗", "INCONCLUSIVE": "?", "FAILED": "✗", "RUNNING": "▶"}


def ladder(
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="COMMAND",
            help="The training script, without a launcher. {local_batch}, {global_batch}, {nproc}, {accum}, {dtype} "
            "and {parallel} in it are filled in for each rung.",
        ),
    ] = None,
    nproc: Annotated[str, typer.Option(metavar="N,N,...", help="Numbers of processes, the target last.")] = "1,2",
    global_batch: Annotated[
        int | None, typer.Option(metavar="B", help="Samples of one step over all processes and micro-batches.")
    ] = None,
    accum: Annotated[int, typer.Option(metavar="K", help="Micro-batches of the rung with micro-batches.")] = 4,
    dtype: Annotated[str, typer.Option(metavar="D[,D]", help="The training's dtype, then the target's.")] = "float32",
    parallel: Annotated[
        str, typer.Option(metavar="P,P", help="The parallelism, then the target's, for {parallel}: ddp,fsdp.")
    ] = "",
    recipe: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Climb with model(), batch(n), loss(model, batch), optimizer(model) instead."
        ),
    ] = None,
    steps: Annotated[str, typer.Option(metavar="K", help="Steps in which tensors are recorded.")] = "3",
    full: Annotated[
        bool, typer.Option("--full", help="Run trainings to their end; otherwise they stop after the recorded steps.")
    ] = False,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="End a rung's command after this time.")] = 600.0,
    fresh: Annotated[
        bool, typer.Option("--fresh/--resume", help="Run every rung, or take those that the store has already.")
    ] = False,
    name: Annotated[str, typer.Option(metavar="NAME", help="What the names of the trials begin with.")] = "ladder",
    store: StoreOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
) -> None:
    """Climb from one device to many, one variable a rung, and stop at the first rung that deviates.

    For example: ddparity ladder --nproc 1,2,4 --global-batch 32 -- train.py --batch-size {local_batch}

    What it has come to is kept in the store after every rung: ddparity ladders NAME shows it, also while it climbs.

    Exit code: 1 if a rung deviates, 4 if its command failed, 3 if a rung is inconclusive, 0 if all pass.
    """
    from ddparity.trials import Store
    from ddparity.trials._ladder import climb
    from ddparity.trials._rungs import LadderSpec

    spec = LadderSpec(
        command=command or [],
        store=Store.resolve(store),
        nproc=_numbers(nproc),
        global_batch=global_batch,
        accum=accum,
        dtypes=_names(dtype),
        parallel=_names(parallel),
        recipe=recipe,
        steps=steps,
        full=full,
        timeout_s=timeout,
        fresh=fresh,
        name=name,
    )
    with Busy("climbing") as busy:
        result = climb(spec, busy.say)
    if as_json:
        emit_json(result)
    else:
        emit(render_ladder(result, "" if store is None else f" --store {store}"))
    raise typer.Exit(exit_code_of(result.status))


def _names(text: str) -> tuple[str, ...]:
    return tuple(each.strip() for each in text.split(",") if each.strip())


def _numbers(text: str) -> tuple[int, ...]:
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdigit() for word in words):
        raise UsageError(f"--nproc {text!r} cannot be used. Give numbers with commas between, as in: --nproc 1,2,4")
    return tuple(int(word) for word in words)


def render_ladder(result: "LadderResult", option: str = "") -> str:
    """Return the rungs as a table, and where the climb ended and why."""
    rows = [_row(rung) for rung in result.rungs]
    lines = [table(("RUNG", "STATUS", "SECONDS", "WHAT", "AGAINST THE ONE BELOW", "REASON"), rows), ""]
    if result.status == "RUNNING":
        return "\n".join([*lines, "RUNNING: the climb is under way"])
    stopped = next((r for r in result.rungs if r.number == result.stopped_at and r.status == result.status), None)
    if stopped is None:
        between = "the climb was killed between two rungs" if result.status == "INTERRUPTED" else ""
        lines.append(f"{result.status}: {between or 'no rung that was run deviates'}")
    else:
        where = f"{result.status}: stopped at rung {stopped.label or stopped.number}"
        untold = result.variable is None and result.status != "DEVIATES" and stopped.reason
        lines.append(f"{where}: {plain(stopped.reason)}" if untold else f"{where}, {_what(result)}")
    if result.status == "DEVIATES" and stopped is not None:
        lines.append(f"  means     {result.meaning}")
        lines += _finding(stopped)
    if result.next:
        lines.append(f"  next      {plain(result.next)}{'' if result.next == result.again else option}")
    return "\n".join(lines)


def _row(rung: "RungResult") -> list[str]:
    status = f"{_GLYPHS.get(rung.status, '-')} {rung.status.replace('_', ' ')}"
    seconds = "" if rung.trial is None else "reused" if rung.reused else f"{rung.seconds:.1f}"
    return [rung.label or str(rung.number), status, seconds, rung.title, plain(rung.change), plain(rung.reason)]


def _what(result: "LadderResult") -> str:
    if result.stopped_at == 0:
        return "the control itself"
    return f"where {plain(result.variable or 'nothing that was recorded')} changes"


def _finding(rung: "RungResult") -> list[str]:
    from ddparity.report._wording import place

    finding = rung.finding
    if finding is None:
        return [f"  finding   {plain(rung.reason)}"]
    cause = finding["cause"]
    return [
        f"  finding   {place(finding['step'], finding['phase'], finding['site'], finding['name'])}",
        f"  cause     {plain(cause['text'])} [{cause['code']}, {cause['confidence']}]",
    ]
