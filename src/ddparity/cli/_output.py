"""Printing: whole documents to standard output, remarks to standard error, colour where it is wanted."""

import os
import re
import sys
from collections.abc import Sequence
from typing import Any

import msgspec

_COLOURS = {"PASS": 32, "DEVIATES": 31, "INCONCLUSIVE": 33, "NOT TESTED": 2, "PARTIAL": 33, "CONFOUNDED": 33}
_WORDS = re.compile(r"^(\s*(?:[✓✗?–] )?(PASS|DEVIATES|INCONCLUSIVE|NOT TESTED|PARTIAL|CONFOUNDED))\b", re.MULTILINE)  # noqa: RUF001


def emit(text: str) -> None:
    """Print ``text`` to standard output; a reader that went away (``| head``) changes no exit code."""
    try:
        print(text if not _wants_colour() else coloured(text), flush=True)
    except BrokenPipeError:
        # Python flushes standard output once more at exit, and would complain then.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def emit_json(document: Any) -> None:
    """Print one JSON document to standard output, and nothing else."""
    try:
        print(msgspec.json.format(msgspec.json.encode(document), indent=2).decode(), flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def say(text: str) -> None:
    """Print a remark to standard error, behind the output of a recorded command."""
    print(f"ddparity: {text}", file=sys.stderr, flush=True)


def coloured(text: str) -> str:
    """Return ``text`` with the words of verdicts in colour; the glyph and the word stand there all the same."""
    return _WORDS.sub(lambda match: f"\x1b[{_COLOURS[match[2]]}m{match[1]}\x1b[0m", text)


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return rows as aligned columns, for people and for ``grep`` alike: one line a row, nothing cut."""
    lines = [list(heads), *(list(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def _wants_colour() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
