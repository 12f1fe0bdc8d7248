"""``ddparity preflight``: the review before a distributed launch."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ddparity._errors import exit_code_of
from ddparity._plain import plain
from ddparity.cli._busy import Busy
from ddparity.cli._options import StoreOption
from ddparity.cli._output import emit, emit_json

if TYPE_CHECKING:
    from ddparity.preflight import Review

# What stands behind the first word of the command is the command's own, -- or not.
CONTEXT_SETTINGS = {"allow_interspersed_args": False}
_GLYPHS = {"PASS": "✓", "DEVIATES": "✗", "INCONCLUSIVE": "?"}


def preflight(
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="COMMAND",
            help="The training script, without a launcher. {local_batch}, {global_batch}, {nproc}, {accum} in it are "
            "filled in; {checkpoints} is an empty folder that it saves to and resumes from.",
        ),
    ] = None,
    nproc: Annotated[int, typer.Option(metavar="N", help="Processes of the launch.")] = 2,
    global_batch: Annotated[
        int | None, typer.Option(metavar="B", help="Samples of one step over all processes and micro-batches.")
    ] = None,
    recipe: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="model(), batch(n), loss(model, batch), optimizer(model) instead."),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Only what takes little time.")] = False,
    only: Annotated[str, typer.Option(metavar="ROW,ROW", help="Settle these rows, and what they stand on.")] = "",
    at_step: Annotated[
        int, typer.Option(metavar="K", help="Kill a rank after K steps; a checkpoint has to be written before.")
    ] = 30,
    steps: Annotated[int, typer.Option(metavar="K", help="Steps of a rehearsal without a fault.")] = 12,
    accum: Annotated[int, typer.Option(metavar="K", help="Micro-batches of the ladder's rung with micro-batches.")] = 4,
    drill_timeout: Annotated[
        float, typer.Option(metavar="SECONDS", help="Time-out of the process groups while a fault is injected.")
    ] = 10.0,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="End a run after this time.")] = 600.0,
    fresh: Annotated[bool, typer.Option("--fresh", help="Run all anew, also what the store has already.")] = False,
    name: Annotated[str, typer.Option(metavar="NAME", help="What the names of the trials begin with.")] = "preflight",
    store: StoreOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
) -> None:
    """Review a training before it is launched on many devices: first without a fault, then with injected ones.

    One device is proved first; then the launch, its data, memory and calls, and the ladder; then a rank leaves, is
    killed, stops, stalls, and checkpoints are resumed, cut short and written to a full disk. For example:

    ddparity preflight --nproc 2 --global-batch 64 -- train.py --batch-size {global_batch} --save {checkpoints}

    Exit code: 1 if a row deviates, 3 if one is inconclusive, 0 if all that was tested pass.
    """
    from ddparity.preflight import PreflightSpec, review
    from ddparity.trials import Store

    spec = PreflightSpec(
        command=command or [],
        recipe=recipe,
        store=Store.resolve(store),
        nproc=nproc,
        global_batch=global_batch,
        accum=accum,
        quick=quick,
        only=tuple(each.strip() for each in only.split(",") if each.strip()),
        steps=steps,
        at_step=at_step,
        drill_timeout_s=drill_timeout,
        timeout_s=timeout,
        fresh=fresh,
        name=name,
    )
    with Busy("reviewing") as busy:
        found = review(spec, (lambda _: None) if as_json else busy.say)
    if as_json:
        emit_json(found)
    else:
        emit(render_review(found))
    raise typer.Exit(exit_code_of(found.status))


def render_review(review: "Review") -> str:
    """Return the rows by section, what each stands on, and what to do next."""
    lines: list[str] = []
    section = ""
    for row in review.rows:
        if row.section != section:
            section = row.section
            note = " (only where all of the above passes)" if section == "communication parameters" else ""
            lines += ["", f"{section}{note}"]
        status = f"{_GLYPHS.get(row.status, '–')} {row.status.replace('_', ' ')}"  # noqa: RUF001
        lines.append(f"  {status:<14} {row.name:<13} {row.title}")
        lines += [f"  {'':<14} {'':<13} {plain(text)}" for text in (row.evidence,) if text]
        lines += [f"  {'':<14} {'':<13} next: {plain(row.next)}" for _ in (0,) if row.next]
    counts = {name: sum(row.status == name for row in review.rows) for name in ("PASS", "DEVIATES", "INCONCLUSIVE")}
    rest = len(review.rows) - sum(counts.values())
    told = ", ".join(f"{count} {name}" for name, count in [*counts.items(), ("NOT TESTED", rest)] if count)
    lines += ["", f"{review.status}: {told}; {review.nproc} processes, {review.seconds:.0f} s"]
    return "\n".join(lines[1:])
