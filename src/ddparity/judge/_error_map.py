"""How far every tensor is from the control's, deviating or not: what a picture of a comparison is made of."""

from pathlib import Path

import msgspec

from ._compare import compare_trials
from ._context import Measurement, Tally
from ._verdict import Verdict


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


def compare_and_measure(
    control_dir: Path, candidate_dir: Path, *, allow_stale: bool = False
) -> tuple[Verdict, ErrorMap]:
    """Do what ``compare_trials`` does, and return every comparison of the numbers beside the verdict.

    The map goes up to the step that deviates.
    """
    measured: list[Measurement] = []
    tally = Tally(measured=measured)
    verdict = compare_trials(control_dir, candidate_dir, allow_stale=allow_stale, tally=tally)
    cells = [
        ErrorCell(step=m.step, phase=m.phase.value, name=m.name, error=m.error, floor=m.floor, by_rank=m.by_rank)
        for m in measured
    ]
    return verdict, ErrorMap(cells=cells)
