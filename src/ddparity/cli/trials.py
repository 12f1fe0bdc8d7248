"""``ddparity trials list`` and ``ddparity trials show``: what has been recorded."""

import shlex
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from ddparity._errors import TraceError
from ddparity._plain import plain
from ddparity.cli._options import StoreOption, trial_names
from ddparity.cli._output import emit, emit_json, table

if TYPE_CHECKING:
    from ddparity.trace import RankFacts, TrialFacts
    from ddparity.trials import Comparison

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]

app = typer.Typer(help="The recorded trials.", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def _group() -> None:
    """The recorded trials."""


@app.command("list")
def list_trials(store: StoreOption = None, as_json: JsonOption = False) -> None:
    """List the trials of the store, the newest first."""
    from ddparity.trials import Ledger, Store

    found = Store.resolve(store)
    with Ledger(found) as ledger:
        rows = ledger.trials()
    if as_json:
        from ddparity.cli._documents import TrialList

        emit_json(TrialList(store=str(found.root), trials=rows))
    elif not rows:
        emit(f"The store {str(found.root)!r} holds no trial. Record one: ddparity record --name NAME -- COMMAND")
    else:
        heads = ("NAME", "STATUS", "EXIT", "CONTROL", "RECORDED", "ID", "COMMAND")
        emit(table(heads, [_cells(msgspec.structs.asdict(row)) for row in rows]))


def _cells(row: dict[str, Any]) -> list[str]:
    exit_code = "" if row["exit_code"] is None else str(row["exit_code"])
    control = "yes" if row["control"] else ""
    command = plain(shlex.join(row["command"]))
    return [plain(row["name"]), row["status"], exit_code, control, _time(row["created"]), row["id"], command]


@app.command("show")
def show_trial(
    trial: Annotated[str, typer.Argument(autocompletion=trial_names, metavar="TRIAL", help="Name or id of a trial.")],
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the facts of a trial, of each of its ranks, and what it was held against."""
    from ddparity.trials import Ledger, Store, rank_folders, read_facts

    found = Store.resolve(store)
    folder = found.find(trial)
    facts = read_facts(folder)
    ranks, faults = _read_ranks(rank_folders(folder))
    with Ledger(found) as ledger:
        comparisons = ledger.comparisons(facts.id)
    if as_json:
        from ddparity.cli._documents import TrialShown

        emit_json(TrialShown(trial=facts, ranks=ranks, damaged=faults, comparisons=comparisons))
        return
    blocks = [_trial_lines(facts, folder), *(_rank_lines(rank) for rank in ranks)]
    blocks += [[f"damaged: {fault}"] for fault in faults] + [_comparison_lines(comparisons)]
    emit("\n\n".join("\n".join(plain(line) for line in block) for block in blocks if block))


def _read_ranks(folders: list[Path]) -> tuple[list["RankFacts"], list[str]]:
    from ddparity.trace import RankFacts, read_json

    ranks: list[RankFacts] = []
    faults: list[str] = []
    for folder in folders:
        try:
            ranks.append(read_json(folder / "rank.json", RankFacts))
        except TraceError as error:
            faults.append(str(error))
    return ranks, faults


def _trial_lines(facts: "TrialFacts", folder: Path) -> list[str]:
    from ddparity.trials import outcome

    pairs: list[tuple[str, str]] = [
        ("trial", f"{facts.name} ({facts.id})"),
        ("status", facts.status.value if facts.exit_code in (None, 0) else f"{facts.status.value} ({outcome(facts)})"),
        ("command", shlex.join(facts.command)),
        ("in", facts.cwd),
        ("started", _time(facts.started)),
        ("ended", "" if facts.ended is None else f"{_time(facts.ended)} ({facts.ended - facts.started:.1f} s)"),
        ("recorded", f"steps {facts.steps}, level {facts.level}, by ddparity {facts.ddparity}"),
        ("script", "" if facts.script is None else f"{facts.script} (sha256 {facts.script_sha256})"),
        ("git", _git(facts)),
        ("control", _control(facts)),
        *(("env", f"{name}={value}") for name, value in facts.env.items()),
        *(("note", note) for note in facts.notes),
        ("folder", str(folder)),
    ]
    return list(_aligned(pairs))


def _git(facts: "TrialFacts") -> str:
    if facts.git.commit is None:
        return f"unknown: {facts.git.reason}" if facts.git.reason else ""
    state = {True: "with changes", False: "clean", None: f"state unknown: {facts.git.reason}"}[facts.git.dirty]
    return f"{facts.git.commit} ({state})"


def _control(facts: "TrialFacts") -> str:
    if facts.proof is None:
        return "yes" if facts.control else "no"
    reason = f": {facts.proof.reason}" if facts.proof.reason else ""
    return f"{facts.proof.status.replace('_', ' ')}{reason}"


def _rank_lines(rank: "RankFacts") -> list[str]:
    pairs: list[tuple[str, str]] = [
        (f"rank {rank.rank}", f"of {rank.world_size}, local rank {rank.local_rank}, pid {rank.pid} on {rank.hostname}"),
        ("status", rank.status.value if rank.error_type is None else f"{rank.status.value}: {rank.error_type}"),
        *(("at", line) for line in rank.error_at[-3:]),
        ("backend", "" if rank.backend is None else f"{rank.backend} {rank.master or ''}"),
        ("device", f"{rank.device} {rank.device_name}"),
        ("versions", _pairs(rank.versions)),
        ("seeds", _pairs(rank.seeds)),
        ("batch", _pairs(rank.batch_shapes)),
        ("settings", _pairs(rank.settings)),
        *(("partial", reason) for reason in rank.partial),
    ]
    return list(_aligned(pairs))


def _comparison_lines(comparisons: list["Comparison"]) -> list[str]:
    if not comparisons:
        return []
    rows = [(each.status, _time(each.created), each.control, each.candidate) for each in comparisons]
    return ["comparisons", *table(("STATUS", "WHEN", "CONTROL", "CANDIDATE"), rows).splitlines()]


def _aligned(pairs: list[tuple[str, str]]) -> Iterator[str]:
    for label, value in pairs:
        if value.strip():
            yield f"{label:<9} {value.strip()}"


def _pairs(mapping: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in mapping.items())


def _time(seconds: float) -> str:
    try:
        return f"{datetime.fromtimestamp(seconds).astimezone():%Y-%m-%d %H:%M:%S}"
    except (OverflowError, ValueError, OSError):  # a damaged file may hold any number
        return "unknown"
