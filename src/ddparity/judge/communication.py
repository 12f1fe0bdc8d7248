"""The communication layer: not examined yet, and it says so."""

from ._run import Run
from ._verdict import Finding, LayerVerdict, Status


def judge(control: Run, candidate: Run) -> tuple[LayerVerdict, list[Finding]]:
    """Return NOT_TESTED: collectives are not recorded yet, only what they did to gradients (the numerics layer)."""
    del control, candidate
    return LayerVerdict(status=Status.NOT_TESTED, reason="collectives are not recorded yet"), []
