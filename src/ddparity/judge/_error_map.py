"""How far every tensor is from the control's, deviating or not: what a picture of a comparison is made of."""

from pathlib import Path

import msgspec

from . import numerics
from ._compare import at_its_best
from ._context import Tally
from ._run import load_run


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
    """The comparisons of the numerics layer in the order of computation."""

    schema: int = 1
    cells: list[ErrorCell]


def error_map(control_dir: Path, candidate_dir: Path) -> ErrorMap:
    """Measure a candidate against a control, tensor by tensor, up to the step that deviates.

    Raises:
        TraceError: If a file of either trial is missing or corrupt.
    """
    control, candidate = load_run(control_dir), load_run(candidate_dir)
    control, floors, _ = at_its_best(control, control_dir, candidate)
    tally = Tally()
    numerics.judge(control, candidate, floors, tally)
    cells = [
        ErrorCell(step=m.step, phase=m.phase.value, name=m.name, error=m.error, floor=m.floor, by_rank=m.by_rank)
        for m in tally.measured
    ]
    return ErrorMap(cells=cells)
