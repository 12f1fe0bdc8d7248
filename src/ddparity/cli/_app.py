"""The command line: which commands there are, and which module holds each.

Only the module of the command that was asked for is imported. The others stand in the list of commands with their line
of help alone: ``ddparity --help`` loads neither torch nor numpy nor pyarrow and answers at once.
"""

import importlib
from collections.abc import Sequence
from importlib import metadata
from typing import Annotated

import typer

COMMANDS = {
    "record": "Run a training command and record it as a trial.",
    "compare": "Judge a candidate against a control, layer by layer.",
    "data": "Which process got which sample; audit the loaders.",
    "ladder": "Climb from one device to many; stop where it deviates.",
    "ladders": "The climbs of a store, done and under way.",
    "preflight": "The review before a launch; ranks are killed, disks are full.",
    "memory": "Will this batch fit: the peak of a step without a device.",
    "plan": "The next trials: one variable at a time.",
    "explain": "What a cause means, what proves it, and what to do about it.",
    "hang": "Who waits for whom in a run that hangs now.",
    "timeline": "Calls and steps of a trial as a Chrome trace.",
    "trials": "The recorded trials.",
    "export": "Metrics and verdicts to TensorBoard or MLflow.",
    "recover": "Interrupt a training, let it resume, and compare.",
    "checkpoint": "Seal what was saved; verify it before training resumes.",
    "serve": "Take training jobs over HTTP.",
    "submit": "Hand a training to a gateway.",
    "jobs": "The jobs of a gateway.",
    "status": "Where a job stands.",
    "logs": "What a rank of a job wrote, whole or live.",
    "cancel": "End a job.",
    "bundle": "Pack trials into one file that may leave the machine.",
    "inspect": "Judge a bundle that somebody else made.",
    "repro": "A script that shows a finding elsewhere, without data.",
    "purge": "Remove what of trials must never leave the machine.",
    "config": "Every setting, its value, and where it comes from.",
    "doctor": "What can be recorded here, and what stands in the way.",
    "demo": "See it work: a healthy and a faulty training, judged.",
    "zoo": "Faulty training scripts with the right verdict for each.",
}
"""Every command, in the order of ``--help``, with its line there."""

EXIT_CODES = (
    "Exit codes: 0 pass; 1 a deviation was found; 2 usage or configuration; 3 inconclusive, not enough evidence; "
    "4 the launched command failed or timed out; 130 interrupted. 1 wins over 3, and 3 over 0."
)


def build(arguments: Sequence[str] | None = None) -> typer.Typer:
    """Return the application.

    Args:
        arguments: The command line. Only the command it names is imported; all of them when None.
    """
    app = typer.Typer(
        name="ddparity",
        help="Find where a distributed PyTorch run stops agreeing with one device, and say why.",
        epilog=EXIT_CODES,
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    wanted = None if arguments is None else next((each for each in arguments if not each.startswith("-")), "")
    for name, line in COMMANDS.items():
        if wanted in (None, name):
            _add(app, name, line)
        else:
            app.command(name, help=line)(_placeholder)
    return app


def _add(app: typer.Typer, name: str, line: str) -> None:
    """Add a command: the ``app`` of its module where it has one (a group), else the function of its name."""
    module = importlib.import_module(f"ddparity.cli.{name}")
    group = getattr(module, "app", None)
    if group is not None:
        app.add_typer(group, name=name, short_help=line, epilog=EXIT_CODES)
    else:
        settings = getattr(module, "CONTEXT_SETTINGS", None)
        app.command(name, short_help=line, epilog=EXIT_CODES, context_settings=settings)(getattr(module, name))


def _placeholder() -> None:
    raise AssertionError("a command that was not asked for was run")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ddparity {metadata.version('ddparity')}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    """Find where a distributed PyTorch run stops agreeing with one device, and say why."""
