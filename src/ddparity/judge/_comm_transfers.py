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
    for (source, target, label, tag), calls in sorted(run.transfers.items()):
        if source not in run.members or target not in run.members:
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
