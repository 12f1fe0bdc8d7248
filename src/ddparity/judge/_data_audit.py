"""One audit of a trial's data: what was looked at, what it came to, and the finding where it deviates."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from . import _causes
from ._verdict import Finding, Phase, Status

_EXAMPLES = 5


@dataclass(frozen=True, kw_only=True)
class Audit:
    """What one question about the data came to.

    Attributes:
        name: What was asked: ``shards``, ``coverage``, ``order``, ``batches``, ``split``, ``random``, ``evaluation``.
        status: PASS, DEVIATES, INCONCLUSIVE, NOT_TESTED.
        text: The answer with its numbers.
        finding: Where and why it deviates.
    """

    name: str
    status: Status
    text: str
    finding: Finding | None = None


def passed(name: str, text: str) -> Audit:
    """Return an audit that found nothing wrong."""
    return Audit(name=name, status=Status.PASS, text=text)


def unsettled(name: str, text: str) -> Audit:
    """Return an audit that could not be settled."""
    return Audit(name=name, status=Status.INCONCLUSIVE, text=text)


def deviates(
    name: str,
    text: str,
    code: str,
    *,
    step: int,
    phase: Phase = Phase.DATA,
    at: str = "sample_ids",
    ranks: list[int] | None = None,
    **evidence: Any,
) -> Audit:
    """Return an audit that found something, with its finding."""
    finding = Finding(
        layer="data",
        step=step,
        phase=phase,
        name=at,
        site="input",
        ranks=ranks,
        evidence=evidence,
        cause=_causes.cause(code),
        next=_causes.advice(code),
    )
    return Audit(name=name, status=Status.DEVIATES, text=text, finding=finding)


def examples(ids: np.ndarray) -> list[int]:
    """Return the first few identities, to look up."""
    return [int(each) for each in ids[:_EXAMPLES]]
