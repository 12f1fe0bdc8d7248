"""What is known about one cause."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class KnownCause:
    """One cause, as ``ddparity explain`` tells it.

    Attributes:
        code: Stable name: where it shows, a dot, what it is.
        meaning: What went wrong, in one sentence.
        evidence: The measured relation that proves it.
        alike: Cases that look like it, each as ``code: what tells them apart``.
        fix: What to do, in one sentence.
    """

    code: str
    meaning: str
    evidence: str
    alike: tuple[str, ...]
    fix: str
