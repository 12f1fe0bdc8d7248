"""How far every tensor is from the control's, deviating or not: what a picture of a comparison is made of."""

import msgspec

from ._context import Measurement


class ErrorCell(msgspec.Struct, kw_only=True):
    """One comparison.

    Attributes:
        step: Training step.
        phase: Phase of the step, as in a finding.
        name: Module or parameter.
        error: Relative error of the logical tensor.
        floor: Relative error up to which it is rounding.
        by_rank: Relative error of each rank's own copy, by rank; empty where ranks hold parts.
    """

    step: int
    phase: str
    name: str
    error: float
    floor: float
    by_rank: dict[int, float] = {}


class ErrorMap(msgspec.Struct, kw_only=True):
    """The comparisons of the numerics layer in the order of computation, up to the step that deviates."""

    schema: int = 1
    cells: list[ErrorCell]


def map_errors(measured: list[Measurement]) -> ErrorMap:
    """Return the comparisons as a picture needs them."""
    cells = [
        ErrorCell(step=m.step, phase=m.phase.value, name=m.name, error=m.error, floor=m.floor, by_rank=m.by_rank)
        for m in measured
    ]
    return ErrorMap(cells=cells)
