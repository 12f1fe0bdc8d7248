"""The pages of ``docs/causes``, made of the table of causes.

``python -m ddparity.report._cause_pages FOLDER`` writes them and removes those of causes that are no more.
"""

import sys
import textwrap
from pathlib import Path

from ddparity.judge import KnownCause, known_causes

INDEX = "index.md"


def cause_page(known: KnownCause) -> str:
    """Return the page of one cause, in Markdown."""
    alike = "\n".join(f"* {_linked(case)}" for case in known.alike)
    return (
        f"# {known.code}\n\n{_wrapped(known.meaning)}\n\n"
        f"## The evidence that proves it\n\n{_wrapped(known.evidence)}\n\n"
        f"## What looks alike\n\n{alike}\n\n"
        f"## The fix\n\n{_wrapped(known.fix)}\n\n"
        f"---\n\nThe same in a terminal: `ddparity explain {known.code}`. [All causes]({INDEX})\n"
    )


def cause_pages() -> dict[str, str]:
    """Return every page of ``docs/causes`` by the name of its file."""
    known = known_causes()
    rows = "\n".join(f"| [{each.code}]({each.code}.md) | {each.meaning} |" for each in known)
    index = (
        "# Causes\n\n"
        "Every finding names its likely cause by a code. A cause is called `proved` when the relation that defines it\n"
        "holds within the noise floor, `likely` when what was measured fits it and nothing else that is known.\n\n"
        f"| code | meaning |\n| --- | --- |\n{rows}\n"
    )
    return {INDEX: index} | {f"{each.code}.md": cause_page(each) for each in known}


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 118, break_long_words=False, break_on_hyphens=False)


def _linked(case: str) -> str:
    code, colon, rest = case.partition(":")
    return f"[{code}]({code}.md){colon}{rest}"


def _write(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    pages = cause_pages()
    for path in folder.glob("*.md"):
        if path.name not in pages:
            path.unlink()
    for name, text in pages.items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    _write(Path(sys.argv[1]))
