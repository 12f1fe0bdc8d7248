"""The peak of a training step, counted without memory: the recipe runs under fake tensors, which have shapes alone.

Two steps are run, since the optimizer's state appears at the end of the first. Where a recipe's code looks at values
(``.item()``, ``nonzero``), fake tensors cannot run it: then two small real batches are run on the CPU instead, and the
line through them is drawn on.
"""

import contextlib
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedFakeTensorException,
)
from torch.distributed._tools.mem_tracker import MemTracker

from ddparity._recipe import Recipe

from ._fit import Point

_SMALL, _SHARE, _MAX_REAL = 4, 0.4, 2 << 30
_DEPENDENT = (DataDependentOutputException, DynamicOutputShapeException, UnsupportedFakeTensorException)
_TOTAL = "Total"


def predict(recipe: Recipe, batches: list[int]) -> tuple[str, list[Point]]:
    """Return how the peaks were found, and the peak of each batch size.

    Args:
        recipe: The four functions of a training.
        batches: Numbers of samples a step.
    """
    try:
        return "fake tensors", [_run(recipe, batch, fake=True) for batch in batches]
    except _DEPENDENT:
        one, other = _small_pair(recipe, max(batches))
        return "small real batches", [_on_line(one, other, batch) for batch in batches]


def _small_pair(recipe: Recipe, largest: int) -> tuple[Point, Point]:
    """Run real batches, twice as large each time, until activations make the peak: below that other things do."""
    size = min(_SMALL, largest)
    points = [_run(recipe, size, fake=False), _run(recipe, 2 * size, fake=False)]
    while points[-1].batch < largest and points[-1].peak < _MAX_REAL and _of_activations(points[-2]) < _SHARE:
        points.append(_run(recipe, 2 * points[-1].batch, fake=False))
    return points[-2], points[-1]


def _of_activations(point: Point) -> float:
    return sum(point.categories.get(name, 0) for name in ("Activation", "Temp")) / max(point.peak, 1)


def _run(recipe: Recipe, batch: int, *, fake: bool) -> Point:
    with FakeTensorMode(allow_non_fake_inputs=True) if fake else contextlib.nullcontext():
        torch.manual_seed(0)
        model = recipe.model()
        optimizer = recipe.optimizer(model)
        inputs = recipe.batch(batch)
        tracker = MemTracker()
        tracker.track_external(model, optimizer, *_tensors(inputs))
        with tracker:
            first, _ = _step(recipe, model, optimizer, inputs, tracker)
            later, phase = _step(recipe, model, optimizer, inputs, tracker)
        categories = _peak(tracker)
    return Point(
        batch=batch,
        peak=max(later, first),
        first_step=first,
        phase=phase,
        categories={name: held for name, held in categories.items() if name != _TOTAL and held},
        parameters=sum(p.numel() * p.element_size() for p in model.parameters()),
    )


def _step(recipe: Recipe, model: Any, optimizer: Any, inputs: Any, tracker: MemTracker) -> tuple[int, str]:
    """Run one step; return the peak so far and the phase that reached the most in this step."""
    reached: dict[str, int] = {}
    loss = recipe.loss(model, inputs)
    reached["forward"] = _peak(tracker)[_TOTAL]
    loss.backward()
    reached["backward"] = _peak(tracker)[_TOTAL]
    optimizer.step()
    reached["optimizer"] = _peak(tracker)[_TOTAL]
    optimizer.zero_grad()
    del loss
    tracker.reset_mod_stats()
    most = max(reached.values())
    return most, next(phase for phase, held in reached.items() if held == most)


def _peak(tracker: MemTracker) -> dict[str, int]:
    """Return the peak by category, over all devices of the recipe (on this machine: the CPU)."""
    found: dict[str, int] = {_TOTAL: 0}
    for held in tracker.get_tracker_snapshot("peak").values():
        for kind, num_bytes in held.items():
            name = str(getattr(kind, "value", kind))
            found[name] = found.get(name, 0) + int(num_bytes)
    return found


def _on_line(one: Point, other: Point, batch: int) -> Point:
    def at(first: int, second: int) -> int:
        return round(first + (second - first) * (batch - one.batch) / (other.batch - one.batch))

    names = other.categories
    return Point(
        batch=batch,
        peak=at(one.peak, other.peak),
        first_step=at(one.first_step, other.first_step),
        phase=other.phase if one.phase == other.phase else f"{one.phase} or {other.phase}",
        categories={name: at(one.categories.get(name, 0), held) for name, held in names.items()},
        parameters=other.parameters,
    )


def _tensors(batch: Any) -> list[torch.Tensor]:
    if isinstance(batch, torch.Tensor):
        return [batch]
    inner = batch.values() if isinstance(batch, dict) else batch if isinstance(batch, (list, tuple)) else ()
    return [tensor for each in inner for tensor in _tensors(each)]
