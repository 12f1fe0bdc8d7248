"""``ddparity submit``: hand a training to a gateway."""

import secrets
from pathlib import Path
from typing import Annotated, Any

import typer

from ddparity._errors import ExitCode, UsageError
from ddparity.cli._busy import Busy
from ddparity.cli._gateway import JsonOption, UrlOption, client, lines_of
from ddparity.cli._options import StoreOption
from ddparity.cli._output import emit, emit_json, say

# What stands behind the first word of the command is the command's own, -- or not.
CONTEXT_SETTINGS = {"allow_interspersed_args": False}


def submit(
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="COMMAND", help="A script below a root of the gateway, and its arguments. Default: digits."
        ),
    ] = None,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="Name of the job. Default: made up.")] = None,
    nproc: Annotated[int, typer.Option(metavar="N", help="How many processes train.")] = 1,
    batch_size: Annotated[int, typer.Option(metavar="B", help="Samples that a process takes a step.")] = 32,
    learning_rate: Annotated[float | None, typer.Option(metavar="R", help="The optimizer's step.")] = None,
    nodes: Annotated[int, typer.Option(metavar="N", help="Machines; more than one needs --engine slurm.")] = 1,
    engine: Annotated[str, typer.Option(metavar="E", help="local or slurm.")] = "local",
    env: Annotated[list[str] | None, typer.Option("--env", metavar="NAME=VALUE", help="May be repeated.")] = None,
    timeout: Annotated[float | None, typer.Option(metavar="SECONDS", help="The longest it may run.")] = None,
    max_restarts: Annotated[int, typer.Option(metavar="K", help="How often a failed training starts again.")] = 0,
    priority: Annotated[int, typer.Option(metavar="P", help="Higher goes first.")] = 0,
    gate: Annotated[str, typer.Option(metavar="on|off", help="Whether one device is proved first.")] = "on",
    record: Annotated[bool, typer.Option("--record", help="Record it, and hold it against one device.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the end.")] = False,
    url: UrlOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Hand a training to a gateway (ddparity serve), which runs it under torchrun.

    For example: ddparity submit --nproc 2 --wait -- train.py --lr 0.1

    {batch_size}, {global_batch}, {world_size} and {learning_rate} in the arguments are filled in.
    Exit code: 0 if it was taken in, with --wait if it COMPLETED; 4 if it ended otherwise.
    """
    words = _without_launcher(list(command or []))
    settings: dict[str, Any] = {
        "entry": words[0] if words else "digits",
        "args": words[1:],
        "env": dict(_pair(each) for each in env or []),
        "nodes": nodes,
        "engine": engine,
        "max_restarts": max_restarts,
        "priority": priority,
        "gate": gate,
        "record": record,
        **({} if learning_rate is None else {"learning_rate": learning_rate}),
        **({} if timeout is None else {"timeout_s": timeout}),
    }
    with client(url, store) as gateway:
        job = gateway.submit(name or _made_up(settings["entry"]), nproc, batch_size, **settings)
        if not wait:
            if as_json:
                emit_json(job.status())
            else:
                emit(job.job_id)
            say(f"next: ddparity status {job.job_id}, or: ddparity logs -f {job.job_id}")
            return
        with Busy(f"waiting for {job.job_id}") as busy:
            busy.say(f"{job.job_id} was taken in; waiting for its end (an interrupt leaves it running)")
            found = job.wait()
    if as_json:
        emit_json(found)
    else:
        emit("\n".join(lines_of(found)))
    raise typer.Exit(ExitCode.PASS if found["status"] == "COMPLETED" else ExitCode.COMMAND_FAILED)


def _without_launcher(words: list[str]) -> list[str]:
    """Return script and arguments: the gateway launches by itself."""
    if words and Path(words[0]).name in ("torchrun", "accelerate", "deepspeed"):
        raise UsageError(
            f"{words[0]!r} is the gateway's part. Leave it out: ddparity submit --nproc N -- {words[-1][:80]} ..."
        )
    return words[1:] if words and Path(words[0]).name in ("python", "python3") else words


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"--env {text!r} cannot be used: write NAME=VALUE.")
    return name, value


def _made_up(entry: str) -> str:
    stem = "".join(char for char in Path(entry).stem if char.isascii() and (char.isalnum() or char in "_-"))
    return f"{stem.strip('-')[:40] or 'job'}-{secrets.token_hex(3)}"
