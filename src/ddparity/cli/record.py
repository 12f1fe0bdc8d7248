"""``ddparity record``: run a training command and record it as a trial."""

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ddparity._errors import ExitCode
from ddparity.cli._options import StoreOption
from ddparity.cli._output import say

if TYPE_CHECKING:
    from ddparity.trace import TrialFacts
    from ddparity.trials import Store

# What stands behind the first word of the command is the command's own, -- or not.
CONTEXT_SETTINGS = {"allow_interspersed_args": False}
_PYTHON = re.compile(r"python(?:\d+(?:\.\d+)?)?\Z")


def record(
    command: Annotated[list[str], typer.Argument(metavar="COMMAND", help="The training command.")],
    store: StoreOption = None,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of the trial. Default: control, or the script's name.")
    ] = None,
    control: Annotated[
        bool, typer.Option("--control", help="Others will be held against this one; it is run twice and compared.")
    ] = False,
    no_prove: Annotated[bool, typer.Option("--no-prove", help="Run a control once; it stays unproved.")] = False,
    steps: Annotated[
        str, typer.Option(metavar="K", help="Steps in which tensors are recorded: 3, or windows as 0:3,500:503.")
    ] = "3",
    level: Annotated[
        str, typer.Option(metavar="LEVEL", help="gradients, or activations (activations and gradients).")
    ] = "activations",
    stop_after_steps: Annotated[
        int | None, typer.Option(metavar="K", help="End the run after so many training steps.")
    ] = None,
    timeout: Annotated[float | None, typer.Option(metavar="SECONDS", help="End the command after this time.")] = None,
    hang_after: Annotated[
        float, typer.Option(metavar="SECONDS", help="Without a call or a step for so long, it hangs.")
    ] = 60.0,
    on_hang: Annotated[
        str, typer.Option(metavar="WHAT", help="dump (say where every rank stands) or stop (end the run, too).")
    ] = "dump",
    probe: Annotated[
        bool, typer.Option("--probe", help="Measure latency and bandwidth between two processes here, afterwards.")
    ] = False,
    floor: Annotated[
        bool,
        typer.Option("--floor", help="Measure a control's noise floor: in float64, and with inputs moved by 1 ulp."),
    ] = False,
    dtype: Annotated[
        str | None,
        typer.Option(metavar="DTYPE", help="float64: promote the training; faults stand far above rounding."),
    ] = None,
    neutral_dropout: Annotated[
        bool, typer.Option("--neutral-dropout", help="Switch dropout off, where random masks cannot be matched.")
    ] = False,
    bank: Annotated[
        bool, typer.Option("--bank", help="Keep a control's batches on this disk, to pin candidates to them.")
    ] = False,
    pinned: Annotated[
        bool, typer.Option("--pinned", help="Train on the control's banked batches, each rank on its slice of them.")
    ] = False,
    batch_dim: Annotated[int, typer.Option(metavar="D", help="Dimension of the inputs that counts samples.")] = 0,
) -> None:
    """Run a training command and record it as a trial.

    For example: ddparity record --name ddp2 -- torchrun --nproc-per-node 2 train.py

    Exit code: 0 if the command exited with 0, 4 if it failed or timed out, 3 if a control did not repeat itself.
    """
    from ddparity.trials import RecordSpec, Store
    from ddparity.trials import record as record_trial

    spec = RecordSpec(
        command=command,
        store=Store.resolve(store),
        name=name or _default_name(command, control=control),
        control=control,
        prove=not no_prove,
        steps=steps,
        level=level,
        stop_after_steps=stop_after_steps,
        timeout_s=timeout,
        hang_after_s=hang_after,
        on_hang=on_hang,
        probe=probe,
        batch_dim=batch_dim,
        dtype=dtype,
        neutral_dropout=neutral_dropout,
        floor=floor,
        bank=bank,
        pinned=pinned,
    )
    facts = record_trial(spec)
    _tell(facts, spec.store, store)
    raise typer.Exit(_exit_code(facts))


def _default_name(command: list[str], *, control: bool) -> str:
    if control:
        return "control"
    script = next((each for each in command if each.endswith(".py")), command[0])
    return re.sub(r"[^A-Za-z0-9_-]+", "-", Path(script).stem)[:60].strip("-") or "trial"


def _tell(facts: "TrialFacts", store: "Store", given: str | None) -> None:
    from ddparity.trace import RankFacts, TrialStatus, read_json
    from ddparity.trials import outcome, rank_folders
    from ddparity.trials._live import any_ring

    folders = rank_folders(store.path(facts.id))
    ranks = len(folders)
    seconds = (facts.ended or facts.started) - facts.started
    ended = f" ({outcome(facts)})" if facts.status in (TrialStatus.FAILED, TrialStatus.INTERRUPTED) else ""
    say(f"{facts.id}: {facts.status.value}{ended} in {seconds:.1f} s, {ranks} rank{'' if ranks == 1 else 's'} recorded")
    for note in facts.notes:
        say(f"note: {note}")
    if facts.proof is not None:
        reason = f": {facts.proof.reason}" if facts.proof.reason else ""
        say(f"control {facts.proof.status.replace('_', ' ')}{reason}")
    failed = facts.proof is not None and facts.proof.status == "FAILED"  # what it takes stands in the reason
    if ranks and facts.status is TrialStatus.COMPLETED and not failed:
        say(f"next: {_next_command(facts, store, '' if given is None else f'--store {given} ')}")
    elif (
        facts.control
        and facts.status is TrialStatus.FAILED
        and (other := _under_torchrun(facts))
        and not any(read_json(folder / "rank.json", RankFacts).batch_shapes for folder in folders)
    ):
        option = "" if given is None else f"--store {given} "
        say(f"next: a script that needs a launcher has one device under it, too: ddparity record {option}{other}")
    elif facts.status is not TrialStatus.COMPLETED and any_ring(store.path(facts.id)):
        option = "" if given is None else f"--store {given} "
        say(f"next: ddparity hang {option}{facts.id} says how each rank ended, and which calls did not fit")


def _under_torchrun(facts: "TrialFacts") -> str:
    """Return how to record one process under torchrun, for a script that was given to Python itself; else nothing."""
    interpreter, *rest = facts.command
    while rest and rest[0] == "-u":
        del rest[0]
    if not _PYTHON.match(Path(interpreter).name) or not rest or not (rest[0] == "-m" or rest[0].endswith(".py")):
        return ""
    return f"--control --name {facts.name} -- {shlex.join(['torchrun', '--nproc-per-node', '1', *rest])}"


def _next_command(facts: "TrialFacts", store: "Store", option: str) -> str:
    if facts.control:
        return f"ddparity record {option}--name NAME -- COMMAND, then: ddparity compare {option}{facts.name} NAME"
    control = next((each.name for each in store.trials() if each.control), None)
    if control is None:
        return f"ddparity record {option}--control --name single -- COMMAND on a single device, to hold this against"
    return f"ddparity compare {option}{control} {facts.name}"


def _exit_code(facts: "TrialFacts") -> ExitCode:
    from ddparity.trace import TrialStatus

    if facts.status is TrialStatus.INTERRUPTED:
        return ExitCode.INTERRUPTED
    if facts.status is not TrialStatus.COMPLETED:
        return ExitCode.COMMAND_FAILED
    if facts.proof is not None and facts.proof.status == "FAILED":
        return ExitCode.INCONCLUSIVE
    return ExitCode.PASS
