"""The memory layer: not examined yet, and it says so."""

from ._run import Run
from ._verdict import Finding, LayerVerdict, Status


def judge(control: Run, candidate: Run) -> tuple[LayerVerdict, list[Finding]]:
    """Return NOT_TESTED: nothing about memory is recorded yet."""
    del control, candidate
    return LayerVerdict(status=Status.NOT_TESTED, reason="memory is not recorded yet"), []
