"""``ddparity hang``: who waits in what, since when, and where those are that did not come."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ddparity._errors import ExitCode, UsageError
from ddparity._plain import plain
from ddparity.cli._options import StoreOption
from ddparity.cli._output import emit, emit_json

if TYPE_CHECKING:
    from ddparity.judge import Finding
    from ddparity.trials._live import LiveProcess

_MOVING_SECONDS = 2.0
_MAX_FRAMES = 6


def hang(
    targets: Annotated[
        list[str], typer.Argument(metavar="TRIAL|PID...", help="A trial, or processes of one that ddparity records.")
    ],
    store: StoreOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
) -> None:
    """Look at a run that hangs now: who waits in which call, since when, and where the others are instead.

    The processes are asked for the stacks of their threads; they need no port and no debugger for it. One that does
    not answer although it runs holds the GIL in native code, or is stopped.

    Exit code: 0 if something moves, 1 if it hangs, 2 if there is nothing to look at.
    """
    from ddparity.trials._live import ask

    folder = _folder(targets, store)
    processes = ask(folder)
    if not processes:
        raise UsageError(
            f"No process of the trial {folder.name!r} lives on this host. For a run that has ended: "
            f"ddparity compare CONTROL {folder.name}"
        )
    quiet = min(each.quiet_seconds for each in processes)
    moving = quiet < _MOVING_SECONDS
    found = [] if moving else _examined(folder)
    if as_json:
        emit_json(
            {
                "schema": 1,
                "trial": folder.name,
                "hangs": not moving,
                "quiet_seconds": quiet,
                **_document(processes, found),
            }
        )
    else:
        emit("\n".join(_text(processes, found, quiet, moving=moving)))
    raise typer.Exit(ExitCode.PASS if moving else ExitCode.DEVIATES)


def _folder(targets: list[str], store: str | None) -> Path:
    from ddparity.trials import Store
    from ddparity.trials._live import trial_of

    folders = set()
    for target in targets:
        if target.isdecimal():
            folder = trial_of(int(target))
            if folder is None or not folder.is_dir():
                raise UsageError(
                    f"Process {target} is not recorded by ddparity, or belongs to somebody else. Start the run with: "
                    "ddparity record -- COMMAND. For any other process: py-spy dump --pid " + target
                )
            folders.add(folder)
        else:
            folders.add(Store.resolve(store).find(target))
    if len(folders) > 1:
        raise UsageError(f"{len(folders)} different trials were named; look at one at a time.")
    return folders.pop()


def _examined(folder: Path) -> list["Finding"]:
    from ddparity.judge._comm_run import load_comm
    from ddparity.judge.communication import examine
    from ddparity.trace import TrialStatus

    return examine(load_comm(folder), status=TrialStatus.RUNNING)[1]


def _document(processes: list["LiveProcess"], found: list["Finding"]) -> dict[str, Any]:
    from ddparity.trace._ring_format import Field

    return {
        "processes": [
            {
                "rank": each.ring.rank,
                "pid": each.ring[Field.PID],
                "host": each.ring.text(Field.HOST),
                "state": each.state,
                "answers": each.answers,
                "quiet_seconds": round(each.quiet_seconds, 3),
                "step": each.ring[Field.STEP],
                "last_call": _last_call(each),
                "stacks": each.stacks,
            }
            for each in processes
        ],
        "findings": found,
    }


def _last_call(process: "LiveProcess") -> str:
    from ddparity.judge._comm_finding import told

    calls = process.ring.calls
    return f"#{calls[-1].seq} of {calls[-1].group}: {told(calls[-1])}" if calls else "none"


def _text(processes: list["LiveProcess"], found: list["Finding"], quiet: float, *, moving: bool) -> list[str]:
    from ddparity.judge._comm_run import short
    from ddparity.trace._ring_format import Field

    if moving:
        lines = [f"it moves: the last call or step was {quiet:.1f} s ago"]
    else:
        lines = [f"it hangs: no rank has made a call or a step for {quiet:.0f} s"]
    for each in processes:
        ring = each.ring
        where = f"pid {ring[Field.PID]} on {ring.text(Field.HOST)}, {each.state}, step {ring[Field.STEP]}"
        lines += [
            "",
            f"rank {ring.rank}: {where}, quiet for {each.quiet_seconds:.1f} s",
            f"  last call  {_last_call(each)}",
        ]
        if not each.answers:
            why = (
                "it is stopped"
                if each.state == "stopped"
                else "native code holds the GIL (py-spy dump --native shows it)"
            )
            lines.append(
                f"  does not answer: {why}; last seen at {short(each.ring.position[0]) if ring.position else '?'}"
            )
        frames = each.stacks.get("MainThread", list[str]())
        lines += [
            f"  {'at' if not i else '  '}         {plain(short(frame))}" for i, frame in enumerate(frames[:_MAX_FRAMES])
        ]
    for finding in found[:1]:
        lines += ["", f"verdict: {plain(finding.cause.text)} [{finding.cause.code}]"]
        lines += [f"  {plain(str(key))}: {plain(str(value))}" for key, value in finding.evidence.items() if value]
        lines += [f"next: {plain(finding.next)}"]
    return lines
