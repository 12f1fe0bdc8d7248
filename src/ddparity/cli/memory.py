"""``ddparity memory``: will this batch fit, without the device."""

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ddparity._errors import ExitCode, UsageError
from ddparity._recipe import FUNCTIONS
from ddparity.cli._busy import Busy
from ddparity.cli._options import StoreOption
from ddparity.cli._output import emit, emit_json

if TYPE_CHECKING:
    from ddparity.memory import Bands

_MAX_NUMBERS = 16
_PARALLEL = ("none", "ddp", "fsdp")
_DEVICES = ("cuda", "cpu")
_NOTHING = ("none", "0")
_PERCENT = re.compile(r"\d{1,3}(?:\.\d+)?")


def memory(
    command: Annotated[
        list[str], typer.Argument(metavar="RECIPE.py | -- COMMAND", help="A recipe, or a training command.")
    ],
    batch: Annotated[str, typer.Option("--batch", metavar="N,N,...", help="Samples of one forward of one rank.")] = (
        "8,16,32,64"
    ),
    seq: Annotated[str | None, typer.Option("--seq", metavar="T,T,...", help="Lengths of a sequence.")] = None,
    capacity: Annotated[
        str | None, typer.Option(metavar="SIZE", help="What a device has, such as 80GiB: bands and the largest batch.")
    ] = None,
    nproc: Annotated[int | None, typer.Option(metavar="N", help="Ranks. Default: what the command launches.")] = None,
    parallel: Annotated[
        str | None,
        typer.Option(metavar="none|ddp|fsdp", help="What wraps the model. Default: what the script does, else none."),
    ] = None,
    device: Annotated[
        str, typer.Option(metavar="cuda|cpu", help="What it will run on; no device is needed for either.")
    ] = "cuda",
    allowance: Annotated[
        str | None,
        typer.Option(metavar="SIZE|none", help="For what a CPU cannot know, in the place of the default's parts."),
    ] = None,
    measured: Annotated[
        str | None,
        typer.Option(
            metavar="BATCH=SIZE|TRIAL", help="A peak measured on the device, or a trial recorded there: no allowance."
        ),
    ] = None,
    bands: Annotated[str, typer.Option(metavar="P,P", help="Percent up to which a peak is stable, and tight.")] = (
        "80,92"
    ),
    batch_dim: Annotated[
        int, typer.Option(metavar="D", help="Dimension of a script's inputs that counts samples.")
    ] = 0,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="After which a script is given up.")] = 300.0,
    store: StoreOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
    svg: Annotated[Path | None, typer.Option("--svg", metavar="FILE", help="Also draw peak against batch.")] = None,
) -> None:
    """Predict the peak of a step for batch sizes, without a device and without allocating it.

    The script runs up to the first forward of its model; from there its first two steps run once for each batch size
    under fake tensors, which have shapes and no memory, in processes of their own. Nothing is trained, and no file is
    written or removed. A recipe (a file with model, batch, loss, optimizer) does where a script cannot.

    Examples: ddparity memory --batch 8,16,32,64 --capacity 80GiB -- torchrun --nproc-per-node 8 train.py --lr 1e-4;
    ddparity memory recipe.py --parallel fsdp --nproc 8

    Exit code: 1 if a batch is prone to run out of memory (above the second of --bands), else 0.
    """
    from ddparity.memory import (
        Question,
        ask_command,
        ask_recipe,
        given_allowance,
        parse_size,
        read_measured,
        render_curve,
        render_forecast,
    )

    _one_of("--device", device, _DEVICES)
    if parallel is not None:
        _one_of("--parallel", parallel, _PARALLEL)
    extra = None
    if allowance is not None:
        extra = given_allowance(0 if allowance in _NOTHING else parse_size(allowance))
    question = Question(
        batches=_numbers("--batch", batch, "list of batch sizes", "8,16,32"),
        seqs=_numbers("--seq", seq, "list of lengths", "512,1024") if seq is not None else [],
        capacity=parse_size(capacity) if capacity is not None else None,
        nproc=nproc,
        parallel=parallel,
        device=device,
        allowance=extra,
        measured=read_measured(measured, store) if measured is not None else None,
        limits=_limits(bands),
        batch_dim=batch_dim,
        timeout_s=timeout,
    )
    with Busy("trying the first steps under fake tensors, for each batch size"):
        if len(command) == 1 and _is_recipe(Path(command[0])):
            found = ask_recipe(question, Path(command[0]))
        else:
            found = ask_command(question, command)
    if svg is not None:
        try:
            svg.write_text(render_curve(*found), encoding="utf-8")
        except OSError as error:
            raise UsageError(f"--svg {str(svg)!r} cannot be written ({error.strerror}). Name another file.") from error
    if as_json:
        one = len(found) == 1
        emit_json(found[0].document() if one else {"lengths": {str(f.points[0].seq): f.document() for f in found}})
    else:
        emit("\n".join(render_forecast(each) for each in found).rstrip("\n"))
    prone = any("OOM-PRONE" in each.bands.values() for each in found)
    raise typer.Exit(ExitCode.DEVIATES if prone else ExitCode.PASS)


def _is_recipe(path: Path) -> bool:
    """Say whether a file has the four functions; it is read, not run. One that is not there is called a recipe too."""
    if path.suffix != ".py" or not path.is_file():
        return path.suffix == ".py"
    try:
        names = {node.name for node in ast.parse(path.read_text(encoding="utf-8")).body if hasattr(node, "name")}
    except (SyntaxError, ValueError, OSError):
        return False
    return names.issuperset(FUNCTIONS)


def _one_of(flag: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise UsageError(f"{flag} {value!r} is not known. Write {', '.join(allowed[:-1])} or {allowed[-1]}.")


def _numbers(flag: str, text: str, what: str, example: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not 0 < len(parts) <= _MAX_NUMBERS or not all(part.isdecimal() and 0 < int(part) < 1 << 31 for part in parts):
        raise UsageError(f"{flag} {text[:80]!r} is no {what}. Write some, such as {example}.")
    return sorted({int(part) for part in parts})


def _limits(text: str) -> "Bands":
    from ddparity.memory import Bands

    parts = text.split(",")
    if len(parts) == 2 and all(_PERCENT.fullmatch(part.strip()) for part in parts):
        stable, tight = (float(part) / 100 for part in parts)
        if 0 < stable <= tight <= 1:
            return Bands(stable=stable, tight=tight)
    raise UsageError(f"--bands {text[:40]!r} are no two percentages that grow. Write them as 80,92.")
