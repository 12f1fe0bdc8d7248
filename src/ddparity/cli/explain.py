"""``ddparity explain``: what a cause means, what proves it, and what to do about it."""

from typing import Annotated

import typer

from ddparity.cli._output import emit, emit_json, table


def explain(
    code: Annotated[
        str | None, typer.Argument(metavar="CODE", help="Code of a cause, as a finding names it. Default: list all.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
) -> None:
    """Explain a cause: its meaning, the evidence that proves it, the cases that look alike, and the fix.

    For example: ddparity explain grad.summed
    """
    from ddparity.judge import find_cause, known_causes
    from ddparity.report import render_cause

    known = known_causes() if code is None else [find_cause(code)]
    if as_json:
        from ddparity.cli._documents import Causes

        emit_json(Causes(causes=known))
    elif code is None:
        emit(table(("CODE", "MEANING"), [(each.code, each.meaning) for each in known]))
    else:
        emit(render_cause(known[0]).rstrip("\n"))
