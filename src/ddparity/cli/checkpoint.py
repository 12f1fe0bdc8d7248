"""``ddparity checkpoint``: seal what was saved, and verify it before training resumes."""

from pathlib import Path
from typing import Annotated

import typer

from ddparity._errors import ExitCode
from ddparity.cli._output import emit, emit_json, say

app = typer.Typer(
    help="Seal what was saved; verify it before training resumes.", no_args_is_help=True, rich_markup_mode=None
)

PathArgument = Annotated[Path, typer.Argument(metavar="PATH", help="Directory, or single file, of the checkpoint.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]


@app.callback()
def _group() -> None:
    """Seal what was saved; verify it before training resumes."""


@app.command()
def seal(
    path: PathArgument,
    step: Annotated[int | None, typer.Option(metavar="K", help="Training step of the save.")] = None,
    save_id: Annotated[str | None, typer.Option(metavar="ID", help="Name of the save. Default: a random one.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Digest every file of a finished save and write the seal, last.

    In a script, on every rank after the save has returned: ddparity.seal_checkpoint(path)
    """
    from ddparity import checkpoint

    made = checkpoint.seal(path, save_id=save_id, step=step)
    if as_json:
        emit_json(made)
    else:
        say(f"{checkpoint.seal_path(path)}: {len(made.files)} files of save {made.save_id} sealed")


@app.command()
def verify(path: PathArgument, as_json: JsonOption = False) -> None:
    """Hold a checkpoint against its seal.

    Exit code: 0 it is what was sealed, 1 it is mixed of two saves, changed or incomplete, 3 it is not sealed.

    In a script, before loading: ddparity.verify_checkpoint(path)
    """
    from ddparity import checkpoint

    report = checkpoint.verify(path)
    if as_json:
        emit_json(report)
    else:
        emit(f"{report.condition.value.replace('_', ' ')}  {path}: {report.text}")
    codes = {checkpoint.Condition.INTACT: ExitCode.PASS, checkpoint.Condition.DAMAGED: ExitCode.DEVIATES}
    raise typer.Exit(codes.get(report.condition, ExitCode.INCONCLUSIVE))
