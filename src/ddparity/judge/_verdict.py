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
    """The noise a finding was held against.

    Attributes:
        value: The largest relative error that rounding explains.
        source: Where that number comes from, in words.
    """

    value: float
    source: str


class Cause(msgspec.Struct, kw_only=True):
    """The likely cause.

    Attributes:
        code: A stable name, which ``ddparity explain`` takes.
        text: What went wrong, in a sentence or two.
        confidence: ``proved``, ``likely`` or ``unexplained``.
    """

    code: str
    text: str
    confidence: str


class Finding(msgspec.Struct, kw_only=True):
    """One deviation.

    Attributes:
        layer: numerics, data, memory or communication.
        step: The training step, from 0; None where it belongs to none.
        phase: Where in the step.
        name: What deviates: the qualified name of a parameter, buffer or module of the unwrapped model, or one of
            ``loss``, ``lr``, ``grad_norm``, ``clip_coefficient``, ``loss_scale``, ``sample_ids``, ``rng``,
            ``metric:NAME``, ``collective:OP``, ``memory:CATEGORY``, ``rank:N``.
        site: What of it was recorded.
        ranks: The ranks it was seen on; None where that says nothing.
        ranks_differ: Whether the ranks differ from each other, too.
        evidence: The numbers, by what they are.
        floor: The noise it was held against; None where the question is one of equality.
        cause: The likely cause.
        follows: Index of the finding that it is a consequence of; None for a finding of its own.
        next: What to do, and the command to run then.
    """

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
    """One layer's verdict.

    Attributes:
        status: What it came to.
        checked: Number of comparisons that were made.
        reason: Why, in words: the first deviation, or what is missing.
    """

    status: Status
    checked: int = 0
    reason: str = ""


class Varied(msgspec.Struct, kw_only=True):
    """One fact that differs between control and candidate.

    Attributes:
        variable: Name of the fact.
        control: Its value in the control.
        candidate: Its value in the candidate.
        part_of: The variable that it belongs to, as the launcher belongs to the world size.
    """

    variable: str
    control: Any
    candidate: Any
    part_of: str = ""


class Verdict(msgspec.Struct, kw_only=True):
    """The whole answer of a comparison.

    Attributes:
        control: Id of the control.
        candidate: Id of the trial that was judged.
        partial: Whether a part of a recording is missing.
        partial_reasons: What is missing.
        varied: The facts that differ.
        confounded: Whether more than one variable changed.
        notes: What else has to be known.
        merge_plan: Samples, reduction, weights and parts under which everything was judged.
        layers: A verdict for each layer.
        findings: Every deviation, in the order of computation within a layer.
    """

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
