"""``ddparity memory``: will this batch fit, without the device."""

from pathlib import Path
from typing import Annotated

import typer

from ddparity._errors import ExitCode, UsageError
from ddparity._recipe import EXAMPLE, load_recipe
from ddparity.cli._output import emit, emit_json

_MAX_BATCHES = 16
_PARALLEL = ("none", "ddp")
_BUCKETS = 2
"""Times the parameters that DDP may add: its buckets, and the gradients beside them where they are no views."""


def memory(
    recipe: Annotated[Path, typer.Argument(metavar="RECIPE.py", help="model, batch, loss, optimizer.")],
    batch: Annotated[str, typer.Option("--batch", metavar="N,N,...", help="Batch sizes of one rank.")] = "8,16,32,64",
    capacity: Annotated[
        str | None, typer.Option(metavar="SIZE", help="What a device has, such as 80GiB: bands and the largest batch.")
    ] = None,
    parallel: Annotated[str, typer.Option(metavar="none|ddp", help="What wraps the model.")] = "none",
    allowance: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="For what a CPU cannot know: context, workspaces, NCCL. Default: none."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
    svg: Annotated[Path | None, typer.Option("--svg", metavar="FILE", help="Also draw peak against batch.")] = None,
) -> None:
    """Predict the peak of a step for batch sizes, without a device and without allocating it.

    The recipe runs two steps under fake tensors; where its code looks at values, two small real batches are run on the
    CPU and the report says so. Example: ddparity memory recipe.py --batch 8,16,32,64 --capacity 80GiB

    Exit code: 1 if a batch is prone to run out of memory (above 92 % of --capacity), else 0.
    """
    from ddparity.memory import forecast, parse_size, predict, render_curve, render_forecast

    batches = _batches(batch)
    if parallel not in _PARALLEL:
        raise UsageError(f"--parallel {parallel!r} is not known. Write none or ddp.")
    limit = parse_size(capacity) if capacity is not None else None
    extra = parse_size(allowance) if allowance is not None else 0
    read = load_recipe(recipe)
    try:
        how, points = predict(read, batches)
    except UsageError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {str(error)[:300]}"
        raise UsageError(f"The recipe {str(recipe)!r} cannot be run ({reason}). One that can:\n{EXAMPLE}") from error
    added = {"buckets of DDP, at most": _BUCKETS * points[-1].parameters} if parallel == "ddp" else {}
    added |= {"allowance": extra} if extra else {}
    found = forecast(points, how=how, added=added, capacity=limit)
    if svg is not None:
        try:
            svg.write_text(render_curve(found), encoding="utf-8")
        except OSError as error:
            raise UsageError(f"--svg {str(svg)!r} cannot be written ({error.strerror}). Name another file.") from error
    if as_json:
        emit_json(found.document())
    else:
        emit(render_forecast(found).rstrip("\n"))
    raise typer.Exit(ExitCode.DEVIATES if "OOM-PRONE" in found.bands.values() else ExitCode.PASS)


def _batches(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not 0 < len(parts) <= _MAX_BATCHES or not all(part.isdecimal() and 0 < int(part) < 1 << 31 for part in parts):
        raise UsageError(f"--batch {text[:80]!r} is no list of batch sizes. Write some, such as 8,16,32.")
    return sorted({int(part) for part in parts})
