"""Noise floors: how far two healthy runs may be apart for rounding alone.

From dtype and depth, and from runs of the control itself where it was recorded with ``--floor``. Measured on healthy
runs (zoo scripts, float32, 2 and 4 ranks): loss within 2 eps, gradients within 3.1 eps, parameters within 4 eps; on a
6-layer transformer gradients within 1.23 of the control's own error against float64. The floor is 8 eps times the
square root of the number of modules on the way, and doubles with every training step, because a step feeds its
rounding into the next; where four times a measured error is more, it is that.

A run may make more of rounding than that: with a high learning rate, a loss near zero, or an optimizer that
normalises gradients (Adam moves an element whose gradient is rounding alone by up to the learning rate). So errors
that were accepted upstream raise the floor: of parameters for all that follows, of activations for the gradients.
Where modules have kinks (ReLU, max-pooling, routing), rounding e in the forward sends a share e of the elements
another way in the backward, which makes a relative error of sqrt(e).
"""

import math
from dataclasses import dataclass, field, replace

from ._verdict import Floor

EPS = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7, "complex128": 2.0**-52}
EPS |= {"complex64": 2.0**-23}
_FACTOR = 8.0
_GROWTH = 2.0
_UPSTREAM = 8.0
_KINKS = 4.0
_PER_TERM = 0.25
_MAX_STEP = 64
"""Beyond it any floor is far above 1; powers of late steps would overflow."""
_DRIFTED = 1e-3
HIDES = 1e-2
"""A floor above this may hide a fault: what passes under it is INCONCLUSIVE, not PASS."""

LOSS = "loss"
_MEASURED = 4.0
_IN_WORDS = {
    "float64": "the control's own error against float64",
    "moved": "what inputs moved by one unit in the last place make of the control",
}


@dataclass
class Measured:
    """The errors that runs of the control itself showed, against the control.

    Attributes:
        errors: Training step, site and name -> relative error, the largest of the runs, and the kind of run.
        worst: Training step -> its largest error.
    """

    errors: dict[tuple[int, str, str], tuple[float, str]] = field(default_factory=dict)
    worst: dict[int, float] = field(default_factory=dict)

    def add(self, kind: str, step: int, site: str, name: str, error: float) -> None:
        """Take in one error of a run of a kind."""
        place = (step, site, name)
        if error >= self.errors.get(place, (0.0, ""))[0]:
            self.errors[place] = (error, kind)
        self.worst[step] = max(self.worst.get(step, 0.0), error)

    def floor(self, step: int, site: str, name: str) -> Floor:
        """Return the floor at a place; 0 where nothing was measured."""
        error, kind = self.errors.get((step, site, name), (0.0, "float64"))
        return Floor(value=_MEASURED * error, source=f"{_MEASURED:g} x {_IN_WORDS[kind]}")

    def limit(self, step: int) -> float:
        """Return what errors accepted upstream may make of the floor at most; infinite where nothing was measured."""
        if step not in self.worst:
            return math.inf
        return _MEASURED * max(error for number, error in self.worst.items() if number <= step)


@dataclass(frozen=True)
class Floors:
    """The floors of one comparison.

    Attributes:
        dtype: The coarsest dtype that computed anything.
        depth: Number of modules of the model.
        upstream: Largest relative error that was accepted upstream of what is judged.
        since: Training step at which the recording begins.
        terms: Number of terms that are added up to one element of a gradient.
        measured: What runs of the control itself showed, where there are any.
    """

    dtype: str
    depth: int
    upstream: float = 0.0
    since: int = 0
    terms: int = 1
    measured: Measured = field(default_factory=Measured)

    def at(
        self, step: int, *, depth: int | None = None, factor: float = 1.0, of: tuple[str, str] | None = None
    ) -> Floor:
        """Return the floor of a relative error at a training step.

        Args:
            step: The training step.
            depth: How many modules into the computation; all of them if None.
            factor: What to multiply it with.
            of: Site and name, to use what was measured there.
        """
        depth = self.depth if depth is None else min(depth, self.depth)
        value, upstream = self.rounding(step, depth=depth), self._upstream(step)
        source = f"{_FACTOR * factor:g} eps({self.dtype}) x sqrt(1 + {depth} modules) x {_GROWTH:g}^step"
        if depth == self.depth and self._of_terms > _FACTOR * math.sqrt(1.0 + depth):
            source = f"{_PER_TERM * factor:g} eps({self.dtype}) x sqrt({self.terms} terms) x {_GROWTH:g}^step"
        if upstream > value:
            source = f"{_UPSTREAM * factor:g} x the error of {self.upstream:.3g} upstream"
            if upstream < _UPSTREAM * self.upstream:
                source = f"{factor:g} x the largest floor that was measured up to this step"
        value = max(value, upstream)
        measured = None if of is None else self.measured.floor(step, *of)
        if measured is not None and measured.value > factor * value:
            return measured
        return Floor(value=factor * value, source=source)

    def _upstream(self, step: int) -> float:
        """Return what errors accepted upstream may make here: no more than was measured, or kinks make of rounding."""
        limit = max(self.measured.limit(step), _KINKS * math.sqrt(self.rounding(step)))
        return min(_UPSTREAM * self.upstream, limit)

    def rounding(self, step: int, *, depth: int | None = None) -> float:
        """Return the floor where nothing upstream is off by more."""
        inside = _FACTOR * math.sqrt(1.0 + (self.depth if depth is None else depth))
        whole = max(inside, self._of_terms) if depth is None or depth == self.depth else inside
        return whole * EPS.get(self.dtype, EPS["float32"]) * _GROWTH ** min(step - self.since, _MAX_STEP)

    @property
    def _of_terms(self) -> float:
        """Rounding of n sums one after the other is eps sqrt(n/3); in blocks, as here, it is half of that or less."""
        return _PER_TERM * math.sqrt(self.terms)

    @property
    def kinks(self) -> float:
        """What kinks may make of the errors upstream in the activation gradients."""
        return _KINKS * math.sqrt(self.upstream)

    def after(self, step: int) -> float:
        """Return what parameters may be off by after steps that were not recorded."""
        return min(replace(self, since=0).rounding(step), HIDES)

    def drifted(self, step: int) -> bool:
        """Whether rounding has already driven the runs so far apart that it will soon explain anything."""
        return self._upstream(step) > _DRIFTED

    def hides(self, step: int) -> bool:
        """Whether rounding may hide a fault at a step."""
        return self.at(step).value > HIDES


def coarsest(dtypes: set[str]) -> str:
    """Return the dtype of largest eps; float32 if none is a floating dtype."""
    known = [dtype for dtype in dtypes if dtype in EPS]
    return max(known, key=lambda dtype: EPS[dtype], default="float32")
