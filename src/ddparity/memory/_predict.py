"""The peak of a training step, counted without memory: the recipe runs under fake tensors, which have shapes alone.

Two steps are run, since the optimizer's state appears at the end of the first. Where a recipe's code looks at values
(``.item()``, ``nonzero``), fake tensors cannot run it: then two small real batches are run on the CPU instead, and the
line through them is drawn on.
"""

import contextlib
import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedFakeTensorException,
)
from torch.utils._pytree import tree_leaves

from ddparity._recipe import Recipe

from ._account import ACTIVATIONS, INPUTS, TEMPORARY, Account
from ._fit import Point
from ._shard import Sharding, bytes_of, largest_unit
from ._swap import converting

FAKE, REAL = "fake tensors", "small real batches"
DEPENDENT = (DataDependentOutputException, DynamicOutputShapeException, UnsupportedFakeTensorException)
"""What fake tensors raise where code looks at values."""
_SMALL, _STRAIGHT, _SHARE, _MAX_REAL = 4, 0.01, 0.4, 2 << 30


def predict(
    recipe: Recipe, batches: list[int], *, device: str = "cpu", seq: int | None = None, sharding: Sharding | None = None
) -> tuple[str, list[Point]]:
    """Return how the peaks were found, and the peak of each batch size.

    Args:
        recipe: The four functions of a training.
        batches: Numbers of samples a step.
        device: What the training will run on, ``cpu`` or ``cuda``.
        seq: Length of a sequence, given to ``batch(n, seq)``.
        sharding: Shards the model over ranks that need not be there.
    """
    run = functools.partial(measure, recipe, device=device, seq=seq, sharding=sharding)
    try:
        return FAKE, [run(batch, fake=True) for batch in batches]
    except DEPENDENT:
        if sharding is not None:
            raise
        return REAL, extrapolate(functools.partial(run, fake=False), batches)


def extrapolate(run: Callable[[int], Point], batches: list[int]) -> list[Point]:
    """Return the points of batches on the line through two small real ones.

    They are twice as large each time, until three in a row lie on a line and what grows with the batch makes up a good
    part of the peak: before that something else makes it.
    """
    largest = max(batches)
    size = min(_SMALL, largest)
    points = [run(size), run(2 * size)]
    while points[-1].batch < largest and points[-1].peak < _MAX_REAL and not _straight(points):
        points.append(run(2 * points[-1].batch))
    return [_on_line(points[-2], points[-1], batch) for batch in batches]


def measure(
    recipe: Recipe,
    batch: int,
    *,
    fake: bool,
    device: str = "cpu",
    seq: int | None = None,
    sharding: Sharding | None = None,
) -> Point:
    """Run two steps of a recipe and return the peak, by fake tensors or by real ones."""
    with FakeTensorMode(allow_non_fake_inputs=True) if fake else contextlib.nullcontext():
        torch.manual_seed(0)
        with converting():
            model = recipe.model()
        if sharding is not None:
            sharding.apply(model)
        optimizer = recipe.optimizer(model)
        make: Callable[..., Any] = recipe.batch
        inputs = make(batch) if seq is None else make(batch, seq)
        account = Account(device)
        account.hold_model(model)
        account.hold_optimizer(optimizer)
        account.hold(tree_leaves(inputs), INPUTS)
        try:
            with account:
                for _ in range(2):
                    _step(recipe, model, optimizer, inputs)
                    account.end_step()
        finally:
            account.close()
    return point_of(account, model.parameters(), batch, seq)


def _step(recipe: Recipe, model: Any, optimizer: Any, inputs: Any) -> None:
    """Make a step as most trainings do: the loss is still there when the optimizer steps."""
    loss = recipe.loss(model, inputs)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def point_of(account: Account, trained: Iterable[torch.Tensor], batch: int, seq: int | None) -> Point:
    """Return what an account of a step or more says of a batch size; ``trained`` are the parameters."""
    first, *later = account.steps[:-1]
    peak = max(later or [first], key=lambda each: each.bytes)
    return Point(
        batch=batch,
        seq=seq,
        peak=max(peak.bytes, first.bytes),
        first_step=first.bytes,
        phase=peak.phase,
        operation=peak.operation,
        module=peak.module,
        categories=peak.categories,
        parameters=bytes_of(trained),
        steps=len(account.steps) - 1,
        unit=largest_unit(),
    )


def _of_activations(point: Point) -> float:
    return sum(point.categories.get(name, 0) for name in (ACTIVATIONS, TEMPORARY)) / max(point.peak, 1)


def _straight(points: list[Point]) -> bool:
    """Say whether the last three points lie on a line that rises, of the peak and of the first step's."""
    if len(points) < 3 or _of_activations(points[-2]) < _SHARE:
        return False
    one, other, last = points[-3:]
    for a, b, c in ((one.peak, other.peak, last.peak), (one.first_step, other.first_step, last.first_step)):
        expected = b + 2 * (b - a)
        if c <= b or abs(c - expected) > _STRAIGHT * c:
            return False
    return True


def _on_line(one: Point, other: Point, batch: int) -> Point:
    def at(first: int, second: int) -> int:
        return round(first + (second - first) * (batch - one.batch) / (other.batch - one.batch))

    first = at(one.first_step, other.first_step)
    return Point(
        batch=batch,
        seq=other.seq,
        peak=max(at(one.peak, other.peak), first),
        first_step=first,
        phase=other.phase if one.phase == other.phase else f"{one.phase} or {other.phase}",
        operation=other.operation,
        module=other.module,
        categories={name: at(one.categories.get(name, 0), held) for name, held in other.categories.items()},
        parameters=other.parameters,
        steps=other.steps,
    )
