"""The verdict: four layers, each judged on its own, and the findings. The JSON of ``compare --json``."""

from enum import StrEnum
from typing import Any

import msgspec

LAYERS = ("numerics", "data", "memory", "communication")


class Status(StrEnum):
    """What a layer's examination came to; a layer that was not examined is never called fine."""

    PASS = "PASS"
    DEVIATES = "DEVIATES"
    INCONCLUSIVE = "INCONCLUSIVE"
    NOT_TESTED = "NOT_TESTED"


class Phase(StrEnum):
    """Where in a training step a finding stands."""

    LAUNCH = "launch"
    INIT = "init"
    DATA = "data"
    FORWARD = "forward"
    LOSS = "loss"
    BACKWARD = "backward"
    COLLECTIVE = "collective"
    CLIP = "clip"
    OPTIMIZER = "optimizer"
    BUFFER = "buffer"
    EVAL = "eval"
    MEMORY = "memory"


class Floor(msgspec.Struct, kw_only=True):
    """The noise a finding was held against, and where that number comes from."""

    value: float
    source: str


class Cause(msgspec.Struct, kw_only=True):
    """The likely cause: ``code`` is a stable name, ``confidence`` is ``proved``, ``likely`` or ``unexplained``."""

    code: str
    text: str
    confidence: str


class Finding(msgspec.Struct, kw_only=True):
    """One deviation."""

    layer: str
    step: int | None
    phase: Phase
    name: str
    site: str
    ranks: list[int] | None = None
    ranks_differ: bool = False
    evidence: dict[str, Any] = {}
    floor: Floor | None = None
    cause: Cause
    follows: int | None = None
    next: str = ""


class LayerVerdict(msgspec.Struct, kw_only=True):
    """One layer's verdict; ``checked`` counts the comparisons that were made."""

    status: Status
    checked: int = 0
    reason: str = ""


class Varied(msgspec.Struct, kw_only=True):
    """One fact that differs between control and candidate; ``part_of`` names the variable that it belongs to."""

    variable: str
    control: Any
    candidate: Any
    part_of: str = ""


class Verdict(msgspec.Struct, kw_only=True):
    """The whole answer of a comparison."""

    schema: int = 1
    control: str
    candidate: str
    partial: bool
    partial_reasons: list[str] = []
    varied: list[Varied] = []
    confounded: bool = False
    variable: str | None = None
    """The one variable that changed; None if none or several did."""
    variables: list[str] = []
    """All that changed, in the order in which they are best changed one after the other."""
    next_trials: list[str] = []
    """Commands that change one variable at a time, where several changed at once."""
    notes: list[str] = []
    merge_plan: dict[str, Any] = {}
    throughput: dict[str, Any] = {}
    """Where the time of the candidate's steps goes, by rank, in milliseconds; empty where no steps were timed."""
    layers: dict[str, LayerVerdict]
    findings: list[Finding] = []

    def first(self, layer: str | None = None) -> Finding | None:
        """Return the first finding (of ``layer``) that follows from no other, or None."""
        for finding in self.findings:
            if finding.follows is None and (layer is None or finding.layer == layer):
                return finding
        return None

    def exit_status(self) -> Status:
        """DEVIATES before INCONCLUSIVE before PASS; NOT_TESTED layers do not count."""
        seen = {verdict.status for verdict in self.layers.values()}
        for status in (Status.DEVIATES, Status.INCONCLUSIVE, Status.PASS):
            if status in seen:
                return status
        return Status.INCONCLUSIVE
