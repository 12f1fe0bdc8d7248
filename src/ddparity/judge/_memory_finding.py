"""Making the findings of the memory layer."""

from collections.abc import Iterable
from typing import Any

from . import _causes
from ._verdict import Finding, Floor, Phase


def finding(
    code: str,
    *,
    category: str,
    step: int | None,
    ranks: Iterable[int],
    ranks_differ: bool = False,
    confidence: str = _causes.PROVED,
    detail: str = "",
    floor: Floor | None = None,
    **evidence: Any,
) -> Finding:
    """Make a finding of this layer; its name is ``memory:CATEGORY``."""
    return Finding(
        layer="memory",
        step=None if step is None or step < 0 else step,
        phase=Phase.MEMORY,
        name=f"memory:{category}",
        site="memory",
        ranks=sorted(ranks),
        ranks_differ=ranks_differ,
        evidence={key: value for key, value in evidence.items() if value not in (None, "", [], {})},
        floor=floor,
        cause=_causes.cause(code, confidence, detail),
        next=_causes.advice(code),
    )
