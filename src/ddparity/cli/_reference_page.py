"""The page ``docs/reference/cli.md``, made of the commands themselves.

``python -m ddparity.cli._reference_page FILE`` writes it.
"""

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from ddparity.cli._app import COMMANDS, build

_HEAD = """# Commands

Made from the program's own help by `make cli-pages`; the same text in a terminal: `ddparity COMMAND --help`. What the
exit codes mean stands in [exit codes](exit-codes.md), what `--json` prints in [JSON](json.md).

"""


def reference_page() -> str:
    """Return the page, in Markdown: a table of all commands, then a section for each with its arguments and options."""
    application: Any = typer.main.get_command(build())
    rows = "\n".join(f"| [{name}](#ddparity-{name}) | {line} |" for name, line in COMMANDS.items())
    sections = [
        section for name in COMMANDS for section in _sections(application.commands[name], f"ddparity {name}", depth=2)
    ]
    return f"{_HEAD}| command | what it does |\n| --- | --- |\n{rows}\n\n" + "\n\n".join(sections) + "\n"


def _sections(command: Any, path: str, *, depth: int) -> Iterator[str]:
    """Yield the section of a command and those of its sub-commands."""
    blocks = [f"{'#' * depth} {path}", *_paragraphs(command.help or "")]
    subcommands: dict[str, Any] = getattr(command, "commands", {})
    if not subcommands:
        blocks.append(f"```text\n{_usage(command, path)}\n```")
        rows = [_row(each) for each in command.params if not getattr(each, "hidden", False)]
        if rows:
            blocks.append("\n".join(["| word | meaning |", "| --- | --- |", *rows]))
    yield "\n\n".join(blocks)
    for name, each in subcommands.items():
        yield from _sections(each, f"{path} {name}", depth=depth + 1)


def _paragraphs(text: str) -> list[str]:
    """Return the paragraphs of a docstring; an example becomes code."""
    found = [" ".join(part.split()) for part in inspect.cleandoc(text).split("\n\n") if part.strip()]
    return [re.sub(r"^(For example: )?(ddparity .*)$", r"\1`\2`", each) for each in found]


def _usage(command: Any, path: str) -> str:
    words = [path]
    if any(each.param_type_name == "option" for each in command.params):
        words.append("[OPTIONS]")
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    words += [_placeholder(each) if each.required else f"[{_placeholder(each).strip('[]')}]" for each in arguments]
    return " ".join(words)


def _row(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"| `{_cell(_placeholder(parameter))}` | {_cell(parameter.help)} |"
    names = ", ".join((*parameter.opts, *parameter.secondary_opts))
    shown = names if parameter.is_flag else f"{names} {_cell(_placeholder(parameter))}"
    return f"| `{shown}` | {_cell(parameter.help)}{_default(parameter)} |"


def _placeholder(parameter: Any) -> str:
    return parameter.metavar or parameter.name.upper()


def _cell(text: str | None) -> str:
    return " ".join((text or "").split()).replace("|", "\\|").replace("<", "&lt;")


def _default(parameter: Any) -> str:
    """Say the default where it is a value that the text of help does not tell already."""
    value = parameter.default
    if parameter.is_flag or value is None or value == "" or callable(value) or "efault" in (parameter.help or ""):
        return ""
    return f" Default: `{value}`."


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(reference_page(), encoding="utf-8")
