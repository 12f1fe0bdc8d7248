"""``ddparity recover``: interrupt a training, let it resume, and hold it against one that ran through."""

import re
import shlex
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from ddparity._errors import exit_code_of
from ddparity.cli._busy import Busy
from ddparity.cli._options import StoreOption
from ddparity.cli._output import emit, emit_json

# What stands behind the first word of the command is the command's own, -- or not.
CONTEXT_SETTINGS = {"allow_interspersed_args": False}


def recover(
    command: Annotated[list[str], typer.Argument(metavar="COMMAND", help="The training command, with {run} in it.")],
    at_step: Annotated[int, typer.Option(metavar="K", help="Interrupt it when K steps are done.")],
    store: StoreOption = None,
    kill: Annotated[
        int | None, typer.Option(metavar="RANK", help="Kill this rank there (SIGKILL). Default: all ranks end.")
    ] = None,
    compare_steps: Annotated[int, typer.Option(metavar="N", help="Steps after it that are compared.")] = 3,
    resume_args: Annotated[str, typer.Option(metavar="ARGS", help="What the command needs to resume.")] = "",
    checkpoints: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Empty folder the script saves into, where {run} cannot be used.")
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep what was saved in --checkpoints, beside it.")] = False,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="Beginning of the trials' names.")] = None,
    timeout: Annotated[float | None, typer.Option(metavar="SECONDS", help="End a run after this time.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
) -> None:
    """Interrupt a training after K steps, run it again so that it resumes, and compare with one that ran through.

    Three runs: until the interruption, on from the script's own checkpoint, and without an interruption. The script
    must save by itself before step K. For example:

    ddparity recover --at-step 20 -- torchrun --standalone --nproc-per-node 2 train.py --save ckpt-{run}

    Exit code: 0 the resumed run is the uninterrupted one, 1 it deviates, 3 it cannot be told, 4 a run failed.
    """
    from ddparity.report import render_resumption
    from ddparity.trials import Store
    from ddparity.trials._recover import RecoverSpec
    from ddparity.trials._recover import recover as run_all

    script = next((each for each in command if each.endswith(".py")), command[0])
    stem = re.sub(r"[^A-Za-z0-9_-]+", "-", Path(script).stem)[:40].strip("-") or "trial"
    spec = RecoverSpec(
        command=command,
        store=Store.resolve(store),
        name=name or f"{stem}-recover",
        at_step=at_step,
        kill=kill,
        num_steps=compare_steps,
        resume_args=shlex.split(resume_args),
        checkpoints=checkpoints,
        keep=keep,
        timeout_s=timeout,
        quiet=as_json,
    )
    with Busy("running the training three times", show=as_json) as busy:
        found = run_all(spec, (lambda _: None) if as_json else busy.say)
    trials = {"parted": found.parted, "resumed": found.resumed, "whole": found.whole}
    if as_json:
        emit_json({**msgspec.to_builtins(found.answer), "trials": trials, "restart": found.notes})
    else:
        emit(render_resumption(found.answer, trials, found.notes).rstrip("\n"))
    raise typer.Exit(exit_code_of(found.answer.status))
