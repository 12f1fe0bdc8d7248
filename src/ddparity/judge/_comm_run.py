"""A trial's rings as the judge sees them: one process a rank, the calls of each group, and how each rank ended."""

import re
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from ddparity.trace._ring_format import POINT_TO_POINT, Field, Kind, ProcessStatus
from ddparity.trace._rings import Call, Ring, read_rings

CASCADE = frozenset({"timeout", "connection", "size_mismatch", "backend"})
"""Kinds of errors that a rank gets because of another one."""
_FRAME = re.compile(r"(.*):(\d+) in (.*)")


@dataclass(frozen=True)
class Error:
    """An error that ended a rank, or that a collective raised."""

    type: str
    kind: str
    where: str
    """``init``, ``collective`` or ``end``."""
    stack: tuple[str, ...]
    parameters: tuple[str, ...]
    step: int
    time: float

    @property
    def is_cascade(self) -> bool:
        """Whether another rank is to blame for it."""
        return self.kind in CASCADE

    @property
    def site(self) -> str:
        """The innermost frame outside of torch."""
        own = [frame for frame in self.stack if "/torch/" not in frame]
        return own[-1] if own else (self.stack[-1] if self.stack else "")


@dataclass
class Member:
    """One rank: its newest process."""

    rank: int
    ring: Ring
    exit_code: int | None = None
    """As its launcher saw it; negative for a signal."""

    @cached_property
    def errors(self) -> list[Error]:
        """Its errors in order."""
        found = []
        for call, told in self.ring.notes(Kind.ERROR):
            found.append(
                Error(
                    type=str(told.get("type", "")),
                    kind=str(told.get("kind", "")),
                    where=str(told.get("at", "")),
                    stack=_strings(told.get("stack")),
                    parameters=_strings(told.get("parameters")),
                    step=call.step,
                    time=self.ring.wall(call.entered),
                )
            )
        return found

    @property
    def error(self) -> Error | None:
        """The error that ended it, or else the last one that a collective or the start raised."""
        return self.errors[-1] if self.errors else None

    @property
    def failed_start(self) -> Error | None:
        """The error that ``init_process_group`` raised, if it never returned."""
        return None if self.joined else next((error for error in self.errors if error.where == "init"), None)

    @property
    def killed(self) -> bool:
        """Whether it ended by a signal of its own, and not because its launcher cleared up."""
        return self.exit_code is not None and self.exit_code < 0 and self.exit_code != -15

    @property
    def last_seen(self) -> float:
        """When it last gave a sign of life."""
        return self.ring.wall(max(self.ring[Field.HEARTBEAT], self.ring[Field.ACTIVE]))

    @property
    def ended(self) -> float | None:
        """When it ended, as it said itself."""
        return self.ring.wall(self.ring[Field.ENDED]) if self.ring[Field.ENDED] else None

    @property
    def position(self) -> str:
        """Where its main thread stood at the last heartbeat."""
        return self.ring.position[0].partition(" @")[0] if self.ring.position else ""

    def init(self) -> dict[str, Any]:
        """Return how it called ``init_process_group``, the last time."""
        notes = self.ring.notes(Kind.INIT)
        return notes[-1][1] if notes else {}

    @property
    def joined(self) -> bool:
        """Whether ``init_process_group`` returned."""
        return any(call.done > call.entered for call, _ in self.ring.notes(Kind.INIT)) and self._has_group

    @property
    def _has_group(self) -> bool:
        return bool(self.ring.notes(Kind.GROUP))

    @cached_property
    def reduced(self) -> list[str]:
        """The parameters whose gradients' arrival is counted, in the order of the counters."""
        names: list[str] = []
        for _, told in self.ring.notes(Kind.REDUCER):
            first, some = told.get("first"), told.get("names")
            if isinstance(first, int) and isinstance(some, list) and len(names) <= first < 65_536:
                names += [""] * (first - len(names)) + [str(name) for name in some]
        return names

    def arrivals(self) -> dict[str, tuple[int, int]]:
        """Return, for each reduced parameter, the step of its gradient's last arrival (-1: none) and their number."""
        counted = self.ring.arrivals
        return {
            name: (counted[i][0] - 1, counted[i][1]) if i < len(counted) else (-1, 0)
            for i, name in enumerate(self.reduced)
            if name
        }

    def first_arrivals(self) -> dict[str, int]:
        """Return, for each reduced parameter, the step of its gradient's first arrival; -1 for none."""
        counted = self.ring.arrivals
        return {n: counted[i][2] - 1 if i < len(counted) else -1 for i, n in enumerate(self.reduced) if n}

    def describe(self) -> str:
        """Say in words how it ended or where it is."""
        status, code = self.ring.status, self.ring[Field.EXIT_CODE]
        error = self.error
        if self.killed:
            return f"was ended by signal {-(self.exit_code or 0)}"
        if status is ProcessStatus.RAISED:
            return f"raised {error.type} at {short(error.site)}" if error is not None else f"ended with code {code}"
        if status is ProcessStatus.EXITED:
            return f"left by os._exit({code}) at {short(self.position)}"
        if status is ProcessStatus.FINISHED:
            how = f" with exit code {self.exit_code}" if self.exit_code else ""
            return f"had ended its program{how}{f' (last seen at {short(self.position)})' if self.position else ''}"
        return f"was at {short(self.position)}" if self.position else "left no trace of where it was"


@dataclass
class Group:
    """One process group: its ranks and the collective calls of each, by number."""

    label: str
    ranks: list[int]
    backend: str = ""
    timeouts: dict[int, float | None] = field(default_factory=dict)
    calls: dict[int, dict[int, Call]] = field(default_factory=lambda: defaultdict(dict))

    def last(self, rank: int) -> int:
        """Return the number of the last call of a rank; 0 if it made none."""
        return max(self.calls[rank], default=0) if rank in self.calls else 0


@dataclass
class CommRun:
    """All that the rings of a trial tell."""

    members: dict[int, Member]
    groups: dict[str, Group]
    doubles: dict[int, list[Ring]]
    """Ranks that two processes took at the same time."""
    world_size: int

    @property
    def missing(self) -> list[int]:
        """Ranks that left no ring."""
        return [rank for rank in range(self.world_size) if rank not in self.members]

    @property
    def num_calls(self) -> int:
        """How many calls were recorded."""
        return sum(len(member.ring.calls) for member in self.members.values())

    @cached_property
    def transfers(self) -> dict[tuple[int, int, str, int], dict[Kind, list[Call]]]:
        """Sends and receives by sender, receiver, group and tag."""
        found: dict[tuple[int, int, str, int], dict[Kind, list[Call]]] = defaultdict(lambda: defaultdict(list))
        for rank, member in self.members.items():
            for call in member.ring.calls:
                group = self.groups.get(call.group)
                if call.kind not in POINT_TO_POINT or group is None or not 0 <= call.root < len(group.ranks):
                    continue
                peer = group.ranks[call.root]
                pair = (rank, peer) if call.kind is Kind.SEND else (peer, rank)
                found[(*pair, call.group, call.tag)][call.kind].append(call)
        return found

    def hosts(self) -> dict[int, str]:
        """Return the host of each rank."""
        return {rank: member.ring.text(Field.HOST) for rank, member in self.members.items()}


def load_comm(folder: Path) -> CommRun:
    """Read the rings of a trial.

    Raises:
        TraceError: If a ring is corrupt.
    """
    rings = read_rings(folder)
    codes = _exit_codes(rings)
    ranks: dict[int, list[Ring]] = defaultdict(list)
    for ring in rings:
        if ring.rank >= 0:
            ranks[ring.rank].append(ring)
    members = {}
    doubles = {}
    for rank, found in sorted(ranks.items()):
        newest = max(
            found, key=lambda ring: (ring[Field.RESTART], bool(ring.notes(Kind.INIT)), ring[Field.STARTED_WALL])
        )
        members[rank] = Member(rank, newest, codes.get(newest[Field.PID]))
        together = [ring for ring in found if _overlap(ring, newest) and ring.notes(Kind.INIT)]
        if len(together) > 1:
            doubles[rank] = together
    world_size = max((m.ring[Field.WORLD_SIZE] for m in members.values()), default=0)
    return CommRun(members, _groups(members), doubles, min(world_size, 65_536))


def _overlap(one: Ring, other: Ring) -> bool:
    if one is other:
        return True
    if one[Field.RESTART] != other[Field.RESTART]:
        return False
    early, late = sorted((one, other), key=lambda ring: ring[Field.STARTED_WALL])
    return early.wall(max(early[Field.HEARTBEAT], early[Field.ENDED])) > late.wall(late[Field.STARTED])


def _exit_codes(rings: list[Ring]) -> dict[int, int]:
    found: dict[int, int] = {}
    for ring in rings:
        for _, told in ring.notes(Kind.FAILURE):
            pid, code = told.get("pid"), told.get("exit_code")
            if isinstance(pid, int) and isinstance(code, int):
                found[pid] = code
    return found


def _groups(members: dict[int, Member]) -> dict[str, Group]:
    groups: dict[str, Group] = {}
    for rank, member in members.items():
        for _, told in member.ring.notes(Kind.GROUP):
            label, ranks = told.get("label"), told.get("ranks")
            if not isinstance(label, str) or not isinstance(ranks, list):
                continue
            group = groups.setdefault(label, Group(label, [r for r in ranks if isinstance(r, int)]))
            group.backend = str(told.get("backend", ""))
            timeout = told.get("timeout_s")
            group.timeouts[rank] = float(timeout) if isinstance(timeout, (int, float)) else None
        for call in member.ring.calls:
            if call.kind not in POINT_TO_POINT and call.group in groups:
                groups[call.group].calls[rank][call.seq] = call
    return groups


def _strings(value: Any) -> tuple[str, ...]:
    return tuple(str(item) for item in value) if isinstance(value, list) else ()


def short(site: str) -> str:
    """Return ``file:line in function`` with the name of the file alone."""
    match = _FRAME.fullmatch(site)
    return f"{match[1].rpartition('/')[2]}:{match[2]} in {match[3]}" if match else site
