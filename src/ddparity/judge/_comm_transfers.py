"""Sends and receives: the n-th send from one rank to another, held against the n-th receive there."""

from collections.abc import Iterator

from ddparity.trace._ring_format import CallFlag, Kind
from ddparity.trace._rings import Call

from ._comm_finding import finding, told, waiting, where_now, who
from ._comm_run import CommRun
from ._verdict import Finding


def transfers(run: CommRun, *, ended_well: bool) -> Iterator[Finding]:
    """Yield what does not fit, for each pair of ranks the first."""
    if any(call.kind is Kind.RECV and call.root < 0 for member in run.members.values() for call in member.ring.calls):
        return  # receives from anybody may take any of the sends
    crossed = dict[tuple[int, int, str], tuple[Call, Call]]() if ended_well else _crossed(run)
    for (source, target, label, tag), calls in sorted(run.transfers.items()):
        if source not in run.members or target not in run.members:
            continue
        if pair := crossed.get((source, target, label)):
            if tag == pair[0].tag:
                yield _of_other_tags(source, target, label, *pair)
            continue
        sent, received = calls[Kind.SEND], calls[Kind.RECV]
        for number, (out, into) in enumerate(zip(sent, received, strict=False), start=1):
            if out.dtype != into.dtype or out.numel != into.numel:
                code = "collective.dtype" if out.dtype != into.dtype else "collective.size"
                yield finding(
                    code,
                    name=f"collective:{into.op}",
                    step=into.step,
                    ranks=[source, target],
                    evidence={
                        "group": label,
                        "tag": tag,
                        "call": number,
                        f"rank {source}": told(out),
                        f"rank {target}": told(into),
                    },
                )
                break
        else:
            if len(sent) != len(received) and not ended_well:
                yield from _alone(run, source, target, sent, received)


def _crossed(run: CommRun) -> dict[tuple[int, int, str], tuple[Call, Call]]:
    """Return the first send and the first receive between two ranks that wait for each other under other tags."""
    pending: dict[tuple[int, int, str], dict[Kind, list[Call]]] = {}
    for (source, target, label, _), calls in run.transfers.items():
        num = min(len(calls[Kind.SEND]), len(calls[Kind.RECV]))
        for kind in (Kind.SEND, Kind.RECV):
            waits = [call for call in calls[kind][num:] if not (call.flags & CallFlag.WAITED and call.done)]
            pending.setdefault((source, target, label), {Kind.SEND: [], Kind.RECV: []})[kind] += waits
    firsts = {
        pair: (min(kinds[Kind.SEND], key=_number), min(kinds[Kind.RECV], key=_number))
        for pair, kinds in pending.items()
        if kinds[Kind.SEND] and kinds[Kind.RECV]
    }
    return {pair: calls for pair, calls in firsts.items() if calls[0].tag != calls[1].tag}


def _number(call: Call) -> int:
    return call.serial


def _of_other_tags(source: int, target: int, label: str, out: Call, into: Call) -> Finding:
    """What is received comes before the forward that needs it, and so it counts to the step before: the later is it."""
    return finding(
        "collective.tag",
        name=f"collective:{into.op}",
        step=max(out.step, into.step),
        ranks=[source, target],
        evidence={
            "group": label,
            f"rank {source}": f"{told(out)}, tag {out.tag}",
            f"rank {target}": f"{told(into)}, tag {into.tag}",
        },
    )


def _alone(run: CommRun, source: int, target: int, sent: list[Call], received: list[Call]) -> Iterator[Finding]:
    """Yield the first send or receive that nobody answered, where somebody waits in it."""
    longer, (waiter, absent) = (sent, (source, target)) if len(sent) > len(received) else (received, (target, source))
    call = longer[min(len(sent), len(received))]
    if call.flags & CallFlag.WAITED and call.done:
        return
    yield finding(
        "collective.missing",
        name=f"collective:{call.op}",
        step=call.step,
        ranks=[absent],
        evidence={
            f"rank {waiter}": waiting(run.members[waiter], call),
            f"rank {absent}": where_now(run.members[absent]),
            "hosts": who(run, [source, target]),
        },
    )
