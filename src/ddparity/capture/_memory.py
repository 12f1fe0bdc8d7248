"""Memory a rank and step: how much is held where the phases of a step begin and end, and what rises.

Reading costs microseconds and changes nothing, so it is done in every step. What a step holds by category (parameters,
gradients, optimizer state) is counted where tensors are recorded. Where the end of the step holds more and more, the
user's variables are looked at twice, a few steps apart: the one that holds more the second time is what grows.
"""

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ddparity.trace import Event

from ._guard import guarded
from ._memory_holders import Census, census, compare
from ._memory_read import Reader, rss

if TYPE_CHECKING:
    from ._session import Session

_RISE_BYTES = 32 << 10
"""Less than this a step is not looked into."""
_RISES = 3
"""After so many rises in a row, of about the same size, what holds it is looked for."""
_LOOK_AGAIN = 1
_MAX_LOOKS = 4
_MAX_EVALUATED = 512


class MemoryWatch:
    """Reads what is held at the borders of the phases; the judge makes sense of the numbers."""

    def __init__(self, session: "Session") -> None:
        self.session = session
        self._reader: Reader | None = None
        self.forked()

    def forked(self) -> None:
        """Begin anew in a child process."""
        self._begin_step()
        self._ends: list[int] = []
        self._looked: tuple[int, Census] | None = None
        self._num_looks = 0
        self._last = 0
        self._evaluation: dict[str, Any] | None = None
        self._told_capacity = False

    def _begin_step(self) -> None:
        self._points: dict[str, int] = {}
        self._categories: dict[str, int] = {}
        self._largest = (0, "")

    @property
    def reader(self) -> Reader:
        """How memory is read; found out on first use."""
        if self._reader is None:
            self._reader = Reader()
        return self._reader

    # -- the phases of a step -----------------------------------------------------------------------------------------

    @guarded
    def at(self, point: str) -> None:
        """Read what is held at a border of a phase; where a phase comes several times its largest value counts."""
        if not self.session.may_record() or not self.session.on_training_thread():
            return
        held = self._last = self.reader.held()
        points = self._points
        points.setdefault("start", held)
        if held > points.get(point, -1):
            points[point] = held

    def inside(self, module: nn.Module) -> None:
        """Note after which module of a recorded forward the most was held."""
        held = self.reader.held()
        if held - self._last > self._largest[0]:
            self._largest = held - self._last, self.session.registry.name(module) or type(module).__name__
        self._last = held
        if held > self._points.get("inside", -1):
            self._points["inside"] = held

    @guarded
    def categories(self, optimizer: torch.optim.Optimizer, *, after: bool) -> None:
        """Count what parameters, gradients and optimizer state take, before and after an optimizer's step."""
        if not self.session.recording:
            return
        held = [p for group in optimizer.param_groups for p in group["params"]]
        if after:
            state = [t for each in optimizer.state.values() for t in each.values() if isinstance(t, torch.Tensor)]
            self._add("optimizer_state", state)
        else:
            self._add("parameters", held)
            self._add("gradients", [p.grad for p in held if p.grad is not None])

    def _add(self, category: str, tensors: list[torch.Tensor]) -> None:
        self._categories[category] = self._categories.get(category, 0) + num_bytes(tensors)

    def end_step(self) -> None:
        """Write what this step held, and look at what rises."""
        self.at("end")
        if "end" not in self._points:
            return
        session = self.session
        told: dict[str, Any] = {"source": self.reader.source, "rss": rss(), "points": self._points}
        told |= self.reader.device_statistics()
        if self._categories:
            tops = list(session.registry.living_tops())
            self._categories["buffers"] = num_bytes([b for top in tops for b in top.buffers()])
            told["categories"] = self._categories
        if self._largest[0]:
            told["largest"] = {"module": self._largest[1], "bytes": self._largest[0]}
        if not self._told_capacity:
            self._told_capacity = True
            told["capacity"] = self.reader.capacity()
        session.writer.event(Event.MEMORY, step=session.step, name="step", value=float(self._points["end"]), **told)
        self._ends.append(self._points["end"])
        self._begin_step()
        self._look()

    # -- evaluation ---------------------------------------------------------------------------------------------------

    @guarded
    def evaluates(self) -> None:
        """A call begins that does not train."""
        held = self.reader.held()
        if self._evaluation is None:
            self._evaluation = {"step": self.session.step, "held": [], "rises": [], "outputs": [], "graph": 0}
        if len(self._evaluation["held"]) < _MAX_EVALUATED:
            self._evaluation["held"].append(held)

    @guarded
    def evaluated(self, output: Any) -> None:
        """Such a call returned."""
        found = self._evaluation
        if found is None or not len(found["rises"]) < len(found["held"]):
            return
        found["rises"].append(self.reader.held() - found["held"][-1])
        tensors = _tensors_of(output)
        found["outputs"].append(num_bytes(tensors))
        found["graph"] += any(tensor.grad_fn is not None for tensor in tensors)

    @guarded
    def close_evaluation(self) -> None:
        """Training goes on, or the program ends: write what the evaluation held."""
        found, self._evaluation = self._evaluation, None
        if found is not None and self.session.opened:
            step = found.pop("step")
            self.session.writer.event(
                Event.MEMORY, step=step, name="evaluation", source=self.reader.source, now=self.reader.held(), **found
            )

    @guarded
    def close(self) -> None:
        """Write what the program had not come to the end of."""
        self.close_evaluation()
        if self._points and self.session.opened:
            told: dict[str, Any] = {"source": self.reader.source, "rss": rss(), "points": self._points}
            told["categories"] = self._categories
            if not self._told_capacity:
                told["capacity"] = self.reader.capacity()
            self.session.writer.event(Event.MEMORY, step=self.session.step, name="unfinished", **told)

    # -- what rises ---------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        ends = self._ends
        del ends[: -_RISES - 1]
        if self._looked is None:
            rises = [later - earlier for earlier, later in pairwise(ends)]
            alike = len(rises) == _RISES and max(rises) < 4 * min(rises)
            if alike and min(rises) > _RISE_BYTES and self._num_looks < _MAX_LOOKS:
                self._num_looks += 1
                self._looked = self.session.step, census(self._own_roots())
        elif self.session.step >= self._looked[0] + _LOOK_AGAIN:
            since, before = self._looked
            self._looked = None
            num_steps = self.session.step - since
            for holder in compare(before, census(self._own_roots()), num_steps):
                self.session.writer.event(Event.HOLDER, step=self.session.step, since=since, **holder)

    def _own_roots(self) -> list[tuple[str, Any]]:
        return [(type(top).__name__, top) for top in self.session.registry.living_tops()]


def num_bytes(tensors: list[Any]) -> int:
    """Return the bytes of the memory behind tensors, each storage once; of a DTensor its local part."""
    storages: dict[int, int] = {}
    for tensor in tensors:
        local = getattr(tensor, "_local_tensor", tensor)
        if local.layout == torch.strided and local.device.type != "meta":
            try:
                storage = local.untyped_storage()
                storages[storage.data_ptr()] = storage.nbytes()
            except RuntimeError:  # a subclass or a fake tensor without memory of its own
                continue
    return sum(storages.values())


def _tensors_of(output: Any, depth: int = 3) -> list[torch.Tensor]:
    if isinstance(output, torch.Tensor):
        return [output]
    inner = output.values() if isinstance(output, dict) else output if isinstance(output, (list, tuple)) else ()
    return [tensor for each in inner for tensor in _tensors_of(each, depth - 1)] if depth else []
