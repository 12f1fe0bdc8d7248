"""Noise floors: how far two healthy runs may be apart for rounding alone.

Here from dtype and depth; measured floors take their place where they exist. Measured on healthy runs (zoo scripts,
float32, 2 and 4 ranks): loss within 2 eps, gradients within 3.1 eps, parameters within 4 eps; on a 6-layer
transformer gradients within 1.23 of the control's own error against float64. The floor is 8 eps times the square
root of the number of modules on the way, and doubles with every training step, because a step feeds its rounding
into the next.

Optimizers that normalise gradients (Adam and its kin) make more of rounding: an element whose gradient is rounding
alone moves by up to the learning rate. That drift is measured on the parameters and raises the floors that follow.
"""

import math
from dataclasses import dataclass

from ._verdict import Floor

EPS = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7, "complex128": 2.0**-52}
EPS |= {"complex64": 2.0**-23}
_FACTOR = 8.0
_GROWTH = 2.0
_DRIFT = 8.0
_MAX_STEP = 64
"""Beyond it any floor is far above 1; powers of late steps would overflow."""
HIDES = 1e-2
"""A floor above this may hide a fault: what passes under it is INCONCLUSIVE, not PASS."""


@dataclass(frozen=True)
class Floors:
    """The floors of one comparison.

    Attributes:
        dtype: The coarsest dtype that computed anything.
        depth: Number of modules of the model.
        drift: Relative error of parameters that an optimizer has made of rounding in the steps before.
    """

    dtype: str
    depth: int
    drift: float = 0.0

    def at(self, step: int, *, depth: int | None = None, factor: float = 1.0) -> Floor:
        """Return the floor of a relative error at a training step, ``depth`` modules into the computation."""
        depth = self.depth if depth is None else min(depth, self.depth)
        source = f"{_FACTOR * factor:g} eps({self.dtype}) x sqrt(1 + {depth} modules) x {_GROWTH:g}^step"
        if self.drift:
            source += f" + {_DRIFT * factor:g} x drift {self.drift:.3g}"
        value = self.rounding(step, depth=depth) + _DRIFT * self.drift
        return Floor(value=factor * value, source=source)

    def rounding(self, step: int, *, depth: int | None = None) -> float:
        """Return the part of a floor that is not drift."""
        depth = self.depth if depth is None else depth
        return _FACTOR * EPS.get(self.dtype, EPS["float32"]) * math.sqrt(1.0 + depth) * _GROWTH ** min(step, _MAX_STEP)

    @property
    def hides(self) -> bool:
        """Whether rounding in this dtype may hide a fault already at step 0."""
        return self.at(0).value > HIDES


def coarsest(dtypes: set[str]) -> str:
    """Return the dtype of largest eps; float32 if none is a floating dtype."""
    known = [dtype for dtype in dtypes if dtype in EPS]
    return max(known, key=lambda dtype: EPS[dtype], default="float32")
