"""Where the time of a training step goes on each rank, who comes late to the calls, and why."""

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from statistics import median
from typing import Any

from ddparity.trace._ring_format import CallFlag, Kind
from ddparity.trace._rings import Call

from ._comm_finding import finding
from ._comm_links import links
from ._comm_run import CommRun, Member
from ._verdict import Finding

_WARM_UP = 2
"""Steps at the start that are not counted: lazy initialisation, first allocation."""
MIN_STEPS = 4
LATE_SECONDS = 0.1
LATE_SHARE = 0.5
"""A rank is a straggler if in most steps it comes later than this, and than this share of the others' step."""
MOST = 0.75
_PARTS = {Kind.DATA: "data", Kind.FORWARD: "forward", Kind.BACKWARD: "backward", Kind.OPTIMIZER: "optimizer"}


@dataclass
class Pace:
    """One rank's steps: seconds of each part in each step, and of the whole."""

    steps: dict[int, dict[str, float]]

    def medians(self) -> dict[str, float]:
        """Return the median of each part over the steps, in milliseconds."""
        parts = sorted({part for step in self.steps.values() for part in step})
        return {part: round(1e3 * median(step.get(part, 0.0) for step in self.steps.values()), 3) for part in parts}


def pace_of(member: Member, recorded: Collection[int] = ()) -> Pace:
    """Split the steps of one rank; communication that it waited for is counted in its part and apart.

    Steps in which tensors were recorded cost more than others; they are left out where enough others are left.
    """
    steps: dict[int, dict[str, float]] = {}
    parts: dict[str, float] = defaultdict(float)
    exposed = 0.0
    last: Call | None = None
    for record in member.ring.records:
        if record.kind in _PARTS:
            parts[_PARTS[record.kind]] += _seconds(record)
            if record.kind is Kind.BACKWARD and last is not None:  # after its last bucket it only waits
                exposed += max(0, record.done - last.entered) / 1e9
                last = None
        elif record.flags & CallFlag.NATIVE and record.flags & CallFlag.BACKWARD:
            last = record
        elif record.flags & CallFlag.WAITED and record.done > (begun := record.waited or record.entered):
            exposed += (record.done - begun) / 1e9
        elif record.kind is Kind.STEP:
            if record.step >= _WARM_UP:
                whole = _seconds(record)
                told = {part: min(seconds, whole) for part, seconds in parts.items()}
                told |= {"other": max(0.0, whole - sum(parts.values())), "communication": exposed, "step": whole}
                steps[record.step] = told
            parts, exposed = defaultdict(float), 0.0
    plain = {step: told for step, told in steps.items() if step not in recorded}
    return Pace(plain if len(plain) >= MIN_STEPS - 1 else steps)


def _seconds(record: Call) -> float:
    return max(0, record.done - record.entered) / 1e9


def throughput(
    run: CommRun, control: CommRun, recorded: Collection[int] = (), probe: CommRun | None = None
) -> dict[str, Any]:
    """Return the split of the step time by rank, in milliseconds, the efficiency against the control, and the links."""
    paces = {rank: pace_of(member, recorded) for rank, member in run.members.items()}
    told: dict[str, Any] = {f"rank {rank}": pace.medians() for rank, pace in paces.items() if pace.steps}
    if not told:
        return {}
    lags = lateness(run)
    for rank, by_step in lags.items():
        if f"rank {rank}" in told and by_step:
            told[f"rank {rank}"]["late"] = round(1e3 * median(by_step.values()), 3)
    alone = [pace_of(member, recorded) for member in control.members.values()]
    if alone and alone[0].steps and len(run.members) > 1:
        base = alone[0].medians()["step"]
        slowest = max(parts["step"] for parts in told.values() if isinstance(parts, dict))
        told["control_step"] = base
        told["efficiency"] = round(base / (slowest * len(run.members)), 3) if slowest else None
    fits = links(run, probe)
    return {**told, "groups": fits} if fits else told


def lateness(run: CommRun) -> dict[int, dict[int, float]]:
    """Return, by rank and step, by how many seconds it came later than the first to the step's latest call."""
    hosts = set(run.hosts().values())
    late: dict[int, dict[int, float]] = {rank: {} for rank in run.members}
    for group in run.groups.values():
        ranks = [rank for rank in group.ranks if rank in run.members]
        if len(ranks) < 2 or len(hosts) > 1:
            continue
        for seq, call in group.calls.get(ranks[0], {}).items():
            calls = {rank: group.calls[rank].get(seq) for rank in ranks}
            if call.step < _WARM_UP or any(other is None for other in calls.values()):
                continue
            times = {rank: run.members[rank].ring.wall(c.entered) for rank, c in calls.items() if c is not None}
            for rank, time in times.items():
                lag = time - min(times.values())
                late[rank][call.step] = max(late[rank].get(call.step, 0.0), lag)
    return late


def straggler(run: CommRun) -> list[Finding]:
    """Name the rank that the others wait for in most steps, and whether it waits for data meanwhile."""
    late = lateness(run)
    paces = {rank: pace_of(member) for rank, member in run.members.items()}
    for rank, by_step in late.items():
        others = [r for r in late if r != rank]
        steps = sorted(step for step in by_step if all(step in late[r] for r in others))
        if len(steps) < MIN_STEPS or not others:
            continue
        behind = [step for step in steps if by_step[step] > max(late[r][step] for r in others)]
        lag = median(by_step[step] for step in steps)
        own = median(pace.get("step", 0.0) for pace in paces[rank].steps.values()) if paces[rank].steps else 0.0
        if len(behind) < MOST * len(steps) or lag < LATE_SECONDS or lag < LATE_SHARE * own:
            continue
        mine = paces[rank].medians()
        theirs = {part: median(paces[r].medians().get(part, 0.0) for r in others) for part in mine}
        excess = {part: mine[part] - theirs.get(part, 0.0) for part in mine if part not in ("step", "communication")}
        most = max(excess, key=lambda part: excess[part])
        code = "pace.data_supply" if excess.get("data", 0.0) >= 0.5e3 * lag else "pace.straggler"
        return [
            finding(
                code,
                name=f"rank:{rank}",
                step=steps[0],
                ranks=[rank],
                evidence={
                    "late_by_ms": round(1e3 * lag, 1),
                    "last_in": f"{len(behind)} of {len(steps)} steps",
                    "longer_in": f"{most} (+{excess[most]:.1f} ms)",
                    "this_rank": mine,
                    "others": theirs,
                },
            )
        ]
    return []
