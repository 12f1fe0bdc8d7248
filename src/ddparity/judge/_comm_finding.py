"""Making the findings of the communication layer: name, step, ranks and evidence of one call or one rank."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from ddparity.trace._ring_format import CallFlag
from ddparity.trace._rings import Call

from . import _causes
from ._comm_run import CommRun, Group, Member, short
from ._run import listed
from ._verdict import Finding, Phase

LAYER = "communication"
_PLAIN = re.compile(r"[A-Za-z_][\w.\[\]]*")


def finding(
    code: str,
    *,
    name: str,
    step: int | None,
    phase: Phase = Phase.COLLECTIVE,
    ranks: Iterable[int] | None = None,
    ranks_differ: bool = True,
    confidence: str = _causes.PROVED,
    detail: str = "",
    evidence: Mapping[str, Any] = {},
) -> Finding:
    """Make a finding of this layer; a step below zero is none."""
    return Finding(
        layer=LAYER,
        step=None if step is None or step < 0 else step,
        phase=phase,
        name=name,
        site="collective",
        ranks=None if ranks is None else sorted(ranks),
        ranks_differ=ranks_differ,
        evidence={key: value for key, value in evidence.items() if value not in (None, "", [], {})},
        cause=_causes.cause(code, confidence, detail),
        next=_causes.advice(code),
    )


def name_of(call: Call) -> str:
    """Return the parameter that a call is about, else the operation."""
    return call.name or f"collective:{call.op}"


def told(call: Call) -> str:
    """Say in words what a rank called, and where."""
    parts = [call.op]
    if call.dtype:
        parts.append(
            f"{call.dtype}[{call.shape.replace('x', ', ')}]"
            if len(call.shape) < 60
            else f"{call.dtype}, {call.numel} elements"
        )
    if call.reduce_op:
        parts.append(call.reduce_op)
    if call.root >= 0:
        parts.append(f"{'with' if call.op in ('send', 'recv') else 'root'} {call.root}")
    if call.layout:
        parts.append(f"strides {call.layout}")
    if what := call.name or (call.argument if _PLAIN.fullmatch(call.argument) else ""):
        parts.append(f"of {what}")
    where = f" at {short(call.site)}" if call.site else ""
    return f"{' '.join(parts)}{where}{_origin(call)}"


def _origin(call: Call) -> str:
    """Say which part of torch made a call that no user code made itself."""
    if call.origin.startswith("autograd/graph.py"):
        return " (gradients, in backward)"
    if (
        call.origin.startswith("nn/parallel/distributed.py")
        or "_sync_params" in call.origin
        or "_verify_param" in call.origin
    ):
        return " (DistributedDataParallel)"
    if "fsdp" in call.origin:
        return " (fully_shard)"
    if "distributed/tensor" in call.origin:
        return " (DTensor)"
    return ""


def sites(calls: dict[int, Call]) -> dict[str, str]:
    """Say for each rank what it called; ranks that called alike stand together."""
    said: dict[str, list[int]] = {}
    for rank, call in sorted(calls.items()):
        said.setdefault(told(call), []).append(rank)
    return {f"rank {listed(ranks)}": text for text, ranks in said.items()}


def waiting(member: Member, call: Call) -> str:
    """Say since when a rank waits in a call, and whether it gave up."""
    end = member.ended or member.last_seen
    seconds = max(0.0, end - member.ring.wall(call.entered))
    gave_up = " and then raised" if call.flags & CallFlag.FAILED or member.error is not None else ""
    return f"waited {seconds:.1f} s in {told(call)}{gave_up}"


def where_now(member: Member, group: Group | None = None) -> str:
    """Say where a rank is instead: its last call, and where its main thread stood."""
    last = member.ring.calls[-1] if member.ring.calls else None
    text = member.describe()
    if last is not None and not last.done and (group is None or last.group != group.label):
        text += f"; its last call: {told(last)}"
    return text


def who(run: CommRun, ranks: Iterable[int]) -> dict[str, str]:
    """Return the hosts of ranks, where there are several hosts."""
    hosts = run.hosts()
    return {f"rank {rank}": hosts[rank] for rank in ranks if rank in hosts} if len(set(hosts.values())) > 1 else {}
