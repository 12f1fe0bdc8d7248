"""What the predicted peaks of some batch sizes say together: a line, its bands, the largest batch that is stable."""

import re
from dataclasses import asdict, dataclass, field
from typing import Any

from ddparity._errors import UsageError

from ._allowance import Allowance, measured_allowance

STABLE, TIGHT = 0.80, 0.92
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(t|g|m|k|gi|mi|ki)?b?", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Point:
    """The predicted peak of one batch size; everything in bytes.

    Attributes:
        batch: Samples a rank and forward.
        peak: The most that is held in the steps after the first.
        first_step: The most that is held in the first step, before the optimizer has its state.
        phase: The phase of the step in which the peak stands.
        categories: What the peak consists of.
        parameters: Bytes of the parameters, of shards what a rank holds.
        operation, module: The operation that reached the peak, and the module that called it (in forward).
        seq: Length of a sequence, where one was asked for.
        steps: Steps that were run; with one alone the optimizer's state is not in it.
        unit: Bytes of the largest group of parameters that FSDP gathers at once.
    """

    batch: int
    peak: int
    first_step: int
    phase: str
    categories: dict[str, int]
    parameters: int
    operation: str = ""
    module: str = ""
    seq: int | None = None
    steps: int = 2
    unit: int = 0


@dataclass(frozen=True, kw_only=True)
class Bands:
    """Shares of the capacity up to which a peak is stable, and tight; above it is prone to run out of memory."""

    stable: float = STABLE
    tight: float = TIGHT

    def name(self, share: float) -> str:
        """Return what a peak of this share is called."""
        return "STABLE" if share <= self.stable else "TIGHT" if share <= self.tight else "OOM-PRONE"


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """Peaks with what wrappers and the device add, held against a capacity.

    Attributes:
        how: ``fake tensors`` or ``small real batches``, with what had to be done for it.
        points: The peaks of the model alone, or of its shards.
        added: Bytes that the wrapper adds.
        allowance: For what a CPU cannot know.
        totals: Peak of each batch with what is added.
        fixed, per_sample: The line through the two largest batches.
        same_phase: Whether those two peak in the same phase, so that the line may be trusted.
        capacity: Bytes that there are, or None.
        shares: Share of the capacity of each batch.
        bands: STABLE, TIGHT or OOM-PRONE for each batch.
        limits: Where the bands end.
        largest_stable: The largest batch that is stable, by the line: one number for all ranks.
        parallel, num_ranks: What wraps the model, over how many ranks.
        removed: Share of the peak of the largest batch that sharding removes.
        notes: What else has to be known.
    """

    how: str
    points: list[Point]
    added: dict[str, int]
    totals: dict[int, int]
    fixed: float
    per_sample: float
    same_phase: bool
    capacity: int | None = None
    shares: dict[int, float] = field(default_factory=dict)
    bands: dict[int, str] = field(default_factory=dict)
    largest_stable: int | None = None
    limits: Bands = field(default_factory=Bands)
    allowance: Allowance = field(default_factory=Allowance)
    parallel: str = "none"
    num_ranks: int = 1
    removed: float | None = None
    notes: list[str] = field(default_factory=list)

    def document(self) -> dict[str, Any]:
        """Return it as what JSON holds."""
        return asdict(self)


def forecast(
    points: list[Point],
    *,
    how: str,
    added: dict[str, int],
    capacity: int | None,
    allowance: Allowance | None = None,
    measured: tuple[int, int] | None = None,
    limits: Bands | None = None,
    **more: Any,
) -> Forecast:
    """Put points together.

    Args:
        points: At least one; by growing batch.
        how: How they were predicted.
        added: Name -> bytes that a wrapper adds to each.
        capacity: Bytes of the device, or None.
        allowance: For what a CPU cannot know.
        measured: A batch and the bytes that were measured with it; takes the place of the allowance.
        limits: Where the bands end.
        more: Other attributes of the forecast.
    """
    limits = limits or Bands()
    extra = sum(added.values())
    one, other = points[-2:] if len(points) > 1 else (points[0], points[0])
    slope = (other.peak - one.peak) / (other.batch - one.batch) if other.batch > one.batch else 0.0
    if measured is not None:
        known = next((each.peak for each in points if each.batch == measured[0]), None)
        at = known if known is not None else other.peak + slope * (measured[0] - other.batch)
        allowance = measured_allowance(*measured, at + extra)
    allowance = allowance or Allowance()
    totals = {point.batch: round(allowance.total(point.peak + extra)) for point in points}
    per_sample = slope * (1 + allowance.share)
    fixed = allowance.total(other.peak + extra) - per_sample * other.batch
    shares = {batch: total / capacity for batch, total in totals.items()} if capacity else {}
    largest = None
    if capacity and per_sample > 0:
        largest = max(0, int((limits.stable * capacity - fixed) // per_sample))
    return Forecast(
        how=how,
        points=points,
        added=added,
        totals=totals,
        fixed=fixed,
        per_sample=per_sample,
        same_phase=one.phase == other.phase,
        capacity=capacity,
        shares=shares,
        bands={batch: limits.name(share) for batch, share in shares.items()},
        largest_stable=largest,
        limits=limits,
        allowance=allowance,
        **more,
    )


def parse_size(text: str) -> int:
    """Return the bytes of ``80GiB``, ``24 GB`` or ``500m``.

    Raises:
        UsageError: It is none.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None or float(match[1]) <= 0:
        raise UsageError(f"{text[:40]!r} is no size. Write a number and a unit, such as 80GiB, 24GB or 500MiB.")
    return int(float(match[1]) * _UNITS[(match[2] or "").lower()])


def size(num_bytes: float) -> str:
    """Return bytes as people read them, ``1.5 MiB``."""
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if abs(num_bytes) >= scale:
            return f"{num_bytes / scale:.4g} {unit}"
    return f"{num_bytes:.0f} B"
