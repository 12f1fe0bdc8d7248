"""How the ranks found each other: what they were started with, and who could not join."""

from collections.abc import Iterator
from typing import Any

from ddparity.trace._ring_format import Field

from . import _causes
from ._comm_finding import finding, who
from ._comm_run import CommRun, Error, short
from ._verdict import Finding, Phase

_FACTS = (
    ("world_size", "launch.world_size"),
    ("master", "launch.rendezvous"),
    ("backend", "launch.backend"),
    ("timeout_s", "launch.timeouts_differ"),
    ("torch", "launch.versions_differ"),
)
_INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
_SETTINGS = ("NCCL_", "GLOO_", "HCCL_", "TORCH_NCCL_", "TORCH_DISTRIBUTED_", "TORCH_GLOO_")
_OWN = frozenset({"NCCL_DEBUG", "NCCL_DEBUG_FILE", "NCCL_IB_HCA"})
"""Settings that may well differ over ranks or hosts."""
_BY_ERROR = {
    "interface": "launch.interface",
    "address_in_use": "launch.address_in_use",
    "resolve": "launch.rendezvous",
    "world_size": "launch.world_size",
}


def launch(run: CommRun) -> list[Finding]:
    """Return what is wrong with the start, the root first."""
    failed = {rank: error for rank, m in run.members.items() if (error := m.failed_start) is not None}
    found = [*_own_errors(run, failed), *_doubles(run), *_differences(run)]
    if failed and not found:
        found += _waited(run, failed)
    return found


def _own_errors(run: CommRun, failed: dict[int, Error]) -> Iterator[Finding]:
    """Ranks whose own start went wrong, in the order of time."""
    for rank, error in sorted(failed.items(), key=lambda pair: pair[1].time):
        member = run.members[rank]
        if error.is_cascade:
            continue
        code = _BY_ERROR.get(error.kind, "launch.failed")
        environment = member.init().get("env", {})
        yield finding(
            code,
            name=f"rank:{rank}",
            step=None,
            phase=Phase.LAUNCH,
            ranks=[rank],
            evidence={
                "error": f"{error.type} at {short(error.site)}",
                "settings": {name: environment[name] for name in _INTERFACES if name in environment},
                "master": member.init().get("master"),
                "others": {f"rank {r}": m.describe() for r, m in run.members.items() if r != rank},
                "hosts": who(run, run.members),
            },
        )


def _doubles(run: CommRun) -> Iterator[Finding]:
    for rank, rings in run.doubles.items():
        yield finding(
            "launch.duplicate_rank",
            name=f"rank:{rank}",
            step=None,
            phase=Phase.LAUNCH,
            ranks=[rank],
            evidence={
                "processes": [f"pid {ring[Field.PID]} on {ring.text(Field.HOST)}" for ring in rings],
                "missing_ranks": run.missing,
            },
        )


def _differences(run: CommRun) -> Iterator[Finding]:
    """What every rank must have alike; interfaces only where the host is the same."""
    told = {rank: member.init() for rank, member in run.members.items() if member.init()}
    for fact, code in _FACTS:
        values = {rank: facts.get(fact) for rank, facts in told.items()}
        yield from _odd(run, values, code, fact)
    hosts = run.hosts()
    names = sorted(
        {name for facts in told.values() for name in _environment(facts) if name.startswith(_SETTINGS)} - _OWN
    )
    for name in names:
        values = {rank: _environment(facts).get(name, "") for rank, facts in told.items()}
        if name in _INTERFACES and len(set(hosts.values())) > 1:
            continue
        code = "launch.interface" if name in _INTERFACES else "launch.settings_differ"
        yield from _odd(run, values, code, name)


def _environment(facts: dict[str, Any]) -> dict[str, str]:
    env = facts.get("env")
    return {str(name): str(value) for name, value in env.items()} if isinstance(env, dict) else {}


def _odd(run: CommRun, values: dict[int, Any], code: str, fact: str) -> Iterator[Finding]:
    if len({str(value) for value in values.values()}) < 2:
        return
    common = max(set(map(str, values.values())), key=lambda text: (sum(str(v) == text for v in values.values()), text))
    odd = [rank for rank, value in values.items() if str(value) != common]
    if len(odd) * 2 == len(values):  # half and half: rank 0 is the measure
        common = str(values[min(values)])
        odd = [rank for rank, value in values.items() if str(value) != common]
    yield finding(
        code,
        name=f"rank:{odd[0]}",
        step=None,
        phase=Phase.LAUNCH,
        ranks=odd,
        evidence={
            "fact": fact,
            **{f"rank {rank}": values[rank] for rank in sorted(values)[:8]},
            "hosts": who(run, values),
        },
    )


def _waited(run: CommRun, failed: dict[int, Error]) -> Iterator[Finding]:
    """Every rank that was seen to start only waited for others: somebody never came."""
    absent = run.missing or [rank for rank in run.members if rank not in failed and not run.members[rank].joined]
    first = min(failed, key=lambda rank: failed[rank].time)
    yield finding(
        "launch.rank_missing",
        name=f"rank:{absent[0] if absent else first}",
        step=None,
        phase=Phase.LAUNCH,
        ranks=absent or sorted(failed),
        confidence=_causes.PROVED if absent else _causes.LIKELY,
        evidence={
            "waiting": sorted(failed),
            "error": run.members[first].describe(),
            "master": run.members[first].init().get("master"),
        },
    )


def new_groups(run: CommRun) -> Iterator[Finding]:
    """Groups that the ranks did not make alike: each call of ``new_group`` is one of all ranks."""
    from ddparity.trace._ring_format import Kind

    made = {rank: member.ring.notes(Kind.NEW_GROUP) for rank, member in run.members.items()}
    if any(told.get("local") for notes in made.values() for _, told in notes) or len(made) < 2:
        return
    for number in range(min(len(notes) for notes in made.values())):
        ranks = {rank: notes[number][1].get("ranks") for rank, notes in made.items()}
        if len({str(value) for value in ranks.values()}) > 1:
            step = min(notes[number][0].step for notes in made.values())
            yield finding(
                "group.differs",
                name="collective:new_group",
                step=step,
                phase=Phase.COLLECTIVE if step >= 0 else Phase.INIT,
                ranks=sorted(ranks),
                evidence={
                    "call": number + 1,
                    **{f"rank {rank}": _made(notes[number][1]) for rank, notes in sorted(made.items())[:8]},
                },
            )
            return


def _made(told: dict[str, Any]) -> str:
    """Say which ranks a group was made of, and where."""
    where = told.get("at")
    return f"new_group({told.get('ranks')})" + (f" at {short(where)}" if isinstance(where, str) and where else "")
