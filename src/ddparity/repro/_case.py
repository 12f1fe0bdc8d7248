"""What a reproduction is made of, besides the sources: two commands, what to record, what should be found."""

import msgspec

from ddparity.judge import Finding, Verdict
from ddparity.trace._inputs import InputSpecs

VERSION = 1
PYTHON = "{python}"
"""Stands in a command for the interpreter that runs the reproduction."""


class Expected(msgspec.Struct, kw_only=True):
    """The finding that should show, as far as it does not depend on the values of the inputs."""

    layer: str
    step: int | None
    phase: str
    name: str
    cause: str

    @classmethod
    def of(cls, finding: Finding) -> "Expected":
        """Return what identifies a finding."""
        return cls(
            layer=finding.layer,
            step=finding.step,
            phase=finding.phase.value,
            name=finding.name,
            cause=finding.cause.code,
        )

    def is_same(self, other: "Expected") -> bool:
        """Tell whether both are the same deviation; the step may be another one."""
        return (self.layer, self.phase, self.name, self.cause) == (other.layer, other.phase, other.name, other.cause)

    def __str__(self) -> str:
        step = "" if self.step is None else f" at step {self.step}"
        return f"{self.layer}: {self.phase} {self.name}{step} ({self.cause})"


class Case(msgspec.Struct, kw_only=True):
    """Everything that ``repro.py`` holds in ``CASE``.

    Attributes:
        control: Command of the control; paths are relative to the folder of the sources.
        candidate: Command of the candidate.
        expected: The finding that should show.
        inputs: Descriptions from which inputs are made up; of a script that makes its own, empty.
        roots: Folders below that of the sources from which modules are imported.
        needs: Packages that have to be installed.
        stand_ins: Functions of packages that need not be there, since what they return is made up.
        steps: Windows in which tensors are recorded.
        level: What is recorded.
        stop_after_steps: Where both runs end, or None.
        dtype: ``float64`` if both were promoted.
        neutral_dropout: Whether random modules are switched off.
        floor: Whether the control's noise floor is measured.
        batch_dim: Dimension of the inputs along which the samples lie.
    """

    version: int = VERSION
    control: list[str]
    candidate: list[str]
    expected: Expected
    inputs: InputSpecs = msgspec.field(default_factory=InputSpecs)
    roots: list[str] = []
    needs: list[str] = []
    stand_ins: list[str] = []
    steps: str = "3"
    level: str = "activations"
    stop_after_steps: int | None = None
    dtype: str | None = None
    neutral_dropout: bool = False
    floor: bool = False
    batch_dim: int = 0

    @property
    def is_made_up(self) -> bool:
        """Whether any input is made up; otherwise the script makes its own."""
        return bool(self.inputs.streams or self.inputs.readers or self.inputs.datasets)


def first_of(verdict: Verdict, layer: str | None = None) -> Expected | None:
    """Return the first finding (of a layer) that follows from no other, or None."""
    finding = verdict.first(layer)
    return None if finding is None else Expected.of(finding)
