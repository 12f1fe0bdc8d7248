"""``ddparity ladders``: what the climbs of a store have come to."""

from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from ddparity._errors import TraceError, UsageError, exit_code_of
from ddparity._plain import plain
from ddparity.cli._options import StoreOption
from ddparity.cli._output import emit, emit_json, table
from ddparity.cli.ladder import render_ladder

if TYPE_CHECKING:
    from ddparity.trials._ladders import LadderResult, Ladders


def ladders(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="One of them; all are listed without.")] = None,
    store: StoreOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
) -> None:
    """List the ladders of the store, or show one as far as it has come; works while it is being climbed.

    Exit code: with a NAME, that of the climb (0 while it is under way); else 0. 3 if its file is damaged.
    """
    from ddparity.trials import Store
    from ddparity.trials._ladders import Ladders

    found = Store.resolve(store)
    kept = Ladders(found)
    if name is None:
        _list(kept, str(found.root), as_json=as_json)
        return
    result = kept.read(name)
    if as_json:
        emit_json(result)
    else:
        emit(render_ladder(result, found.option))
    raise typer.Exit(exit_code_of(result.status))


def _list(kept: "Ladders", root: str, *, as_json: bool) -> None:
    results: list[LadderResult] = []
    damaged: list[str] = []
    for name in kept.names():
        try:
            results.append(kept.read(name))
        except TraceError as error:
            damaged.append(str(error))
        except UsageError:  # removed since it was listed
            continue
    if as_json:
        from ddparity.cli._documents import LadderList

        emit_json(LadderList(store=root, ladders=results, damaged=damaged))
    elif not results and not damaged:
        emit(f"The store {root!r} holds no ladder. Climb one: ddparity ladder --nproc 1,2 -- train.py")
    else:
        rows = [
            (result.name, result.status, _stopped(result), _time(result.updated), plain(result.again))
            for result in results
        ]
        heads = ("NAME", "STATUS", "STOPPED AT", "UPDATED", "COMMAND")
        emit("\n".join([table(heads, rows), *(f"damaged: {plain(text)}" for text in damaged)]))


def _stopped(result: "LadderResult") -> str:
    if result.stopped_at is None:
        return ""
    label = next((rung.label for rung in result.rungs if rung.status == result.status), str(result.stopped_at))
    return f"rung {label}" + (f", {plain(result.variable)}" if result.variable else "")


def _time(seconds: float) -> str:
    try:
        return f"{datetime.fromtimestamp(seconds).astimezone():%Y-%m-%d %H:%M:%S}"
    except (OverflowError, ValueError, OSError):  # a damaged file may hold any number
        return "unknown"
