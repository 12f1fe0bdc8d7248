"""The review before a distributed launch: the single device first, then each layer, then faults that are injected.

Every row is settled by trials that really run: a rank that is killed is killed. A row whose ground is missing - the
single-device path does not stand, the launch does not come up - is not tried, and says so.
"""

from ddparity.preflight._review import review
from ddparity.preflight._rows import ROWS, Review, Row, RowKind
from ddparity.preflight._spec import PreflightSpec

__all__ = ["ROWS", "PreflightSpec", "Review", "Row", "RowKind", "review"]
