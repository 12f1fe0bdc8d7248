"""What the ranks of a trial held, as their memory events tell it. The numbers are untrusted."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ddparity.trace import Event, EventRow

from ._run import Run

_MAX_BYTES = 1 << 60


@dataclass(frozen=True)
class MemoryStep:
    """One step of one rank: bytes held at the borders of its phases."""

    step: int
    source: str
    points: dict[str, int]
    categories: dict[str, int]
    rss: int
    reserved: int
    largest: tuple[str, int]

    @property
    def end(self) -> int:
        """Bytes held when the step had ended."""
        return self.points.get("end", 0)

    @property
    def peak(self) -> tuple[int, str]:
        """The most that was held at a border of a phase, and at which."""
        return max(((held, point) for point, held in self.points.items()), default=(0, ""))

    def rise(self, point: str) -> int | None:
        """How much more was held at a point than when the step began."""
        if point not in self.points or "start" not in self.points:
            return None
        return self.points[point] - self.points["start"]


@dataclass(frozen=True)
class Evaluation:
    """The calls of models that did not train, between two training steps."""

    step: int
    held: list[int]
    """Before each call."""
    rises: list[int]
    """What each call left behind when it returned."""
    outputs: list[int]
    graphs: int
    """Calls whose output holds a graph."""

    @property
    def most(self) -> int:
        """The most that was held when a call returned."""
        return max((before + rise for before, rise in zip(self.held, self.rises, strict=False)), default=0)

    @property
    def rise(self) -> int:
        """How much more that was than before the first call."""
        return self.most - self.held[0] if self.held and self.rises else 0


@dataclass
class MemoryRank:
    """One rank's memory over the run."""

    rank: int
    steps: list[MemoryStep] = field(default_factory=list)
    evaluations: list[Evaluation] = field(default_factory=list)
    holders: list[EventRow] = field(default_factory=list)
    unfinished: MemoryStep | None = None
    """The step in which it ended."""
    capacity: int = 0
    capacity_by: str = ""

    @cached_property
    def by_step(self) -> dict[int, MemoryStep]:
        """Its steps by number."""
        return {step.step: step for step in self.steps}

    @cached_property
    def parameters(self) -> int:
        """Bytes of the parameters that its optimizers update."""
        return max((step.categories.get("parameters", 0) for step in self.steps), default=0)

    @property
    def peak(self) -> tuple[int, str, int]:
        """The most it held at a border of a phase or after a call of an evaluation, at which, and in which step."""
        found = [(*step.peak, step.step) for step in self.steps]
        found += [(each.most, "evaluation", each.step) for each in self.evaluations]
        return max(found, default=(0, "", -1))


def load_memory(run: Run) -> dict[int, MemoryRank]:
    """Return what each rank recorded of its memory; only steps whose numbers count the same thing."""
    found = {}
    for rank in sorted(run.ranks):
        mine = MemoryRank(rank)
        for event in run.events(Event.MEMORY, rank):
            if event.name == "step":
                mine.steps.append(_step(mine, event))
            elif event.name == "unfinished":
                mine.unfinished = _step(mine, event)
            elif event.name == "evaluation":
                mine.evaluations.append(_evaluation(event))
        mine.holders = run.events(Event.HOLDER, rank)
        if mine.steps:
            source = mine.steps[-1].source
            mine.steps = [step for step in mine.steps if step.source == source]
        found[rank] = mine
    return found


def _step(mine: MemoryRank, event: EventRow) -> MemoryStep:
    data = event.data
    largest = data.get("largest")
    largest = largest if isinstance(largest, dict) else {}
    capacity = data.get("capacity")
    if isinstance(capacity, dict):
        mine.capacity, mine.capacity_by = count(capacity.get("bytes")), str(capacity.get("by", ""))
    return MemoryStep(
        step=event.step,
        source=str(data.get("source", "")),
        points=_counts(data.get("points")),
        categories=_counts(data.get("categories")),
        rss=count(data.get("rss")),
        reserved=count(data.get("reserved")),
        largest=(str(largest.get("module", "")), count(largest.get("bytes"))),
    )


def _evaluation(event: EventRow) -> Evaluation:
    data = event.data
    return Evaluation(
        event.step,
        _list(data.get("held")),
        _list(data.get("rises")),
        _list(data.get("outputs")),
        count(data.get("graph")),
    )


def _counts(value: Any) -> dict[str, int]:
    return {str(key): count(each) for key, each in value.items()} if isinstance(value, dict) else {}


def _list(value: Any) -> list[int]:
    return [count(each) for each in value] if isinstance(value, list) else []


def count(value: Any) -> int:
    """Return a number of bytes or things, 0 for what is none."""
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < _MAX_BYTES else 0


def size(num_bytes: float) -> str:
    """Return bytes as people read them, ``1.5 MiB``."""
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if abs(num_bytes) >= scale:
            return f"{num_bytes / scale:.4g} {unit}"
    return f"{num_bytes:.0f} B"
