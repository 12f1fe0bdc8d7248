"""``ddparity doctor``: what can be recorded here, and what stands in the way."""

from typing import Annotated

import typer

from ddparity._errors import ExitCode
from ddparity._plain import plain
from ddparity.cli._busy import Busy
from ddparity.cli._options import StoreOption
from ddparity.cli._output import emit, emit_json


def doctor(
    store: StoreOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
) -> None:
    """Look at this environment, say what can be recorded here, and suggest one command.

    Exit code: 0 if a training can be recorded here, 2 if not.
    """
    from ddparity.cli._health import Grade, examine, recordable, suggestion
    from ddparity.trials import Store

    found = Store.resolve(store)
    with Busy("looking at what is installed here"):
        checks = examine(found)
    able, command = recordable(checks), suggestion(checks, found)
    if as_json:
        from ddparity.cli._documents import Doctor

        emit_json(Doctor(checks=checks, recordable=able, suggestion=command))
    else:
        glyphs = {Grade.OK: "✓", Grade.WARN: "!", Grade.FAIL: "✗"}
        lines = [f"{glyphs[each.grade]} {each.grade.value:<4}  {each.name}: {plain(each.value)}" for each in checks]
        for index, each in reversed(list(enumerate(checks))):
            if each.advice:
                lines.insert(index + 1, f"        {plain(each.advice)}")
        lines += ["", "recorded here", *(f"  {what}: {answer}" for what, answer in able.items())]
        emit("\n".join([*lines, "", f"next: {command}"]))
    failed = any(each.grade is Grade.FAIL for each in checks)
    raise typer.Exit(ExitCode.USAGE if failed else ExitCode.PASS)
