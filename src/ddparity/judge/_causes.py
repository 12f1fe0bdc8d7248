"""Causes: a stable code, what it means, and what to do. A cause is claimed only where its relation was measured.

The texts stand in the ``_causes_*.py`` beside this; ``make cause-pages`` makes ``docs/causes``
of them.
"""

import difflib

from ddparity._errors import UsageError

from ._cause import KnownCause
from ._causes_after_loss import AFTER_LOSS
from ._causes_communication import COMMUNICATION
from ._causes_data import DATA
from ._causes_memory import MEMORY
from ._causes_resume import RESUME
from ._causes_until_loss import AT_START, UNTIL_LOSS
from ._verdict import Cause

PROVED, LIKELY, UNEXPLAINED = "proved", "likely", "unexplained"

_TABLES = (AT_START, DATA, UNTIL_LOSS, AFTER_LOSS, COMMUNICATION, MEMORY, RESUME)

CAUSES = {known.code: known for table in _TABLES for known in table}
"""Every cause by its code, in the order of computation."""


def cause(code: str, confidence: str = PROVED, detail: str = "") -> Cause:
    """Return the cause of a code; ``detail`` is put after its text."""
    meaning = CAUSES[code].meaning
    text = meaning if not detail else f"{meaning} {detail}"
    return Cause(code=code, text=text, confidence=confidence)


def advice(code: str) -> str:
    """Return what to look at or to change before the next recording."""
    return CAUSES[code].fix


def known_causes() -> list[KnownCause]:
    """Return every cause, in the order of computation."""
    return list(CAUSES.values())


def find_cause(code: str) -> KnownCause:
    """Return what is known about a code.

    Raises:
        UsageError: There is no such code; the message names the ones that are near.
    """
    if code in CAUSES:
        return CAUSES[code]
    near = difflib.get_close_matches(code, CAUSES, n=3, cutoff=0.4) or [c for c in CAUSES if c.startswith(code[:4])]
    hint = f" Near it: {', '.join(near)}." if near else ""
    raise UsageError(f"No cause has the code {code[:80]!r}.{hint} All of them: ddparity explain")
