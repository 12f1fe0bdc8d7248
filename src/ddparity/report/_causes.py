"""What is known about a cause, as the text of ``ddparity explain``."""

import textwrap
from collections.abc import Iterator

from ddparity.judge import KnownCause

_WIDTH = 96
_INDENT = 12


def render_cause(known: KnownCause) -> str:
    """Return what is known about a cause as text, ending in a newline."""
    lines = [known.code]
    for label, text in _parts(known):
        wrapped = textwrap.wrap(text, _WIDTH - _INDENT, break_long_words=False)
        lines += [f"  {label if not i else '':<{_INDENT - 2}}{line}" for i, line in enumerate(wrapped)]
    return "\n".join(lines) + "\n"


def _parts(known: KnownCause) -> Iterator[tuple[str, str]]:
    yield "meaning", known.meaning
    yield "evidence", known.evidence
    for index, case in enumerate(known.alike):
        yield "not" if not index else "", case
    yield "fix", known.fix
