"""``ddparity hang``: who waits in what, since when, and where those are that did not come."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from ddparity._errors import ExitCode, UsageError
from ddparity._plain import plain
from ddparity.cli._options import StoreOption, trial_names
from ddparity.cli._output import emit, emit_json

if TYPE_CHECKING:
    from ddparity.cli._documents import ProcessNow
    from ddparity.judge import Finding
    from ddparity.trace import TrialFacts
    from ddparity.trials._live import LiveProcess

_MOVING_SECONDS = 2.0
_MAX_FRAMES = 6


def hang(
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            autocompletion=trial_names,
            metavar="[TRIAL|PID...]",
            help="A trial, or processes of one that ddparity records.",
        ),
    ] = None,
    flight_recorder: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="Dumps of PyTorch's flight recorder: a second witness, or the only one."),
    ] = None,
    store: StoreOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
) -> None:
    """Look at a run that hangs now: who waits in which call, since when, and where the others are instead.

    The processes are asked for the stacks of their threads; they need no port and no debugger for it. One that does
    not answer although it runs holds the GIL in native code, or is stopped. Of a trial that has ended it says how each
    rank ended and which calls did not fit; that needs no control.

    Exit code: 0 if something moves, 1 if it hangs or its calls did not fit, 2 if there is nothing to look at.
    """
    from ddparity.trials._live import ask

    if not targets:
        _flight_alone(flight_recorder, as_json=as_json)
    folder = _folder(targets, store)
    processes = ask(folder)
    if not processes:
        _ended(folder, flight_recorder, as_json=as_json)
    quiet = min(each.quiet_seconds for each in processes)
    moving = quiet < _MOVING_SECONDS
    found = [] if moving else _examined(folder, processes)
    witness = _witnessed(folder, flight_recorder)
    if as_json:
        from ddparity.cli._documents import HangReport

        emit_json(
            HangReport(
                trial=folder.name,
                hangs=not moving,
                quiet_seconds=quiet,
                processes=[_now(each) for each in processes],
                findings=found,
                flight_recorder=witness,
            )
        )
    else:
        emit("\n".join([*_text(processes, found, quiet, moving=moving), *_told(witness)]))
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


def _flight_alone(path: Path | None, *, as_json: bool) -> NoReturn:
    """Tell of a run of which there are dumps of the flight recorder alone, and leave."""
    from ddparity.judge._comm_finding import told
    from ddparity.judge._comm_flight import flight_run
    from ddparity.judge.communication import examine
    from ddparity.trace import TrialStatus
    from ddparity.trace._flight import read_flight

    if path is None:
        raise UsageError("Nothing to look at: give a trial, a process of one, or --flight-recorder PATH.")
    run = flight_run(read_flight(path))
    checked, found = examine(run, status=TrialStatus.FAILED)
    last = {rank: member.ring.calls[-1] for rank, member in run.members.items() if member.ring.calls}
    ranks = {rank: f"#{call.seq} of {call.group}: {told(call)}" for rank, call in last.items()}
    if as_json:
        from ddparity.cli._documents import HangReport, RankThen

        then = [RankThen(rank=rank, at=text) for rank, text in ranks.items()]
        emit_json(HangReport(checked=checked, missing_ranks=run.missing, ranks=then, findings=found))
    else:
        lines = [f"flight recorder of {len(run.members)} of {run.world_size} ranks, {checked} calls compared"]
        lines += [f"rank {rank}: last call {plain(text)}" for rank, text in ranks.items()]
        emit("\n".join(lines + (_verdict(found) or ["", "verdict: the calls of its ranks agree"])))
    raise typer.Exit(ExitCode.DEVIATES if found else ExitCode.PASS)


def _witnessed(folder: Path, path: Path | None) -> list[str]:
    from ddparity.judge._comm_flight import flight_run, witnessed
    from ddparity.judge._comm_run import load_comm
    from ddparity.trace._flight import read_flight

    return [] if path is None else witnessed(load_comm(folder), flight_run(read_flight(path)))


def _told(witness: list[str]) -> list[str]:
    return ["", "flight recorder", *(f"  {plain(line)}" for line in witness)] if witness else []


def _ended(folder: Path, path: Path | None, *, as_json: bool) -> NoReturn:
    """Tell of a trial none of whose processes lives here, and leave."""
    from ddparity.judge._comm_finding import where_now
    from ddparity.judge.communication import examine_trial
    from ddparity.trials import outcome, read_facts

    facts = read_facts(folder)
    run, found = examine_trial(folder, status=facts.status)
    if not run.members:
        raise UsageError(
            f"The trial {folder.name!r} has no process on this host and made no process group: there is nothing to "
            f"look at. Hold it against a control: ddparity compare CONTROL {folder.name}"
        )
    ranks = {rank: where_now(member) for rank, member in sorted(run.members.items())}
    witness = _witnessed(folder, path)
    if as_json:
        from ddparity.cli._documents import HangReport, RankThen

        emit_json(
            HangReport(
                trial=folder.name,
                outcome=outcome(facts),
                missing_ranks=run.missing,
                ranks=[RankThen(rank=rank, at=text) for rank, text in ranks.items()],
                findings=found,
                flight_recorder=witness,
            )
        )
    else:
        lines = [_how_it_ended(facts), *(f"rank {rank}: {plain(text)}" for rank, text in ranks.items())]
        lines += _verdict(found) or ["", "verdict: the calls of its ranks agree"]
        emit("\n".join(lines + _told(witness)))
    raise typer.Exit(ExitCode.DEVIATES if found else ExitCode.PASS)


def _how_it_ended(facts: "TrialFacts") -> str:
    from ddparity.trace import TrialStatus
    from ddparity.trials import outcome

    if facts.status is TrialStatus.RUNNING:
        return "no process of it lives on this host, and nobody saw it end: it runs on others, or ddparity was killed"
    return f"it has ended: {outcome(facts)}"


def _examined(folder: Path, processes: list["LiveProcess"]) -> list["Finding"]:
    from ddparity.judge._comm_ends import unanswering
    from ddparity.judge._comm_run import load_comm
    from ddparity.judge.communication import examine
    from ddparity.trace import TrialStatus

    run = load_comm(folder)
    silent = {each.ring.rank: each.state for each in processes if not each.answers and each.ring.rank in run.members}
    return unanswering(run, silent) + examine(run, status=TrialStatus.RUNNING)[1]


def _now(process: "LiveProcess") -> "ProcessNow":
    from ddparity.cli._documents import ProcessNow
    from ddparity.trace._ring_format import Field

    ring = process.ring
    return ProcessNow(
        rank=ring.rank,
        pid=ring[Field.PID],
        host=ring.text(Field.HOST),
        state=process.state,
        answers=process.answers,
        quiet_seconds=round(process.quiet_seconds, 3),
        step=ring[Field.STEP],
        last_call=_last_call(process),
        stacks=process.stacks,
    )


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
    return lines + _verdict(found)


def _verdict(found: list["Finding"]) -> list[str]:
    from ddparity.report._wording import shown

    lines: list[str] = []
    for finding in found[:1]:
        lines += ["", f"verdict: {plain(finding.cause.text)} [{finding.cause.code}]"]
        lines += [f"  {plain(key).replace('_', ' ')}: {shown(value)}" for key, value in finding.evidence.items()]
        lines += [f"next: {plain(finding.next)}"]
    return lines
