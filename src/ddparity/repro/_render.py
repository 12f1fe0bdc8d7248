"""The script itself: a header that says what it is and holds, the case, the sources, and three lines that run it."""

import pprint
from collections.abc import Mapping

import msgspec

from ddparity.repro._case import Case

_WIDTH = 116


def render(case: Case, sources: Mapping[str, str]) -> str:
    """Return ``repro.py``."""
    plain = msgspec.to_builtins(case)
    parts = [
        f'"""{_header(case, sources)}"""\n\nimport sys\n',
        f"CASE = {pprint.pformat(plain, width=_WIDTH, sort_dicts=False, compact=True)}\n",
        "SOURCES = {}\n",
        *(f"SOURCES[{name!r}] = {_literal(text)}\n" for name, text in sources.items()),
        'if __name__ == "__main__":\n    from ddparity.repro import reproduce\n\n'
        "    raise SystemExit(reproduce(CASE, SOURCES, sys.argv[1:]))\n",
    ]
    return "\n".join(parts)


def _header(case: Case, sources: Mapping[str, str]) -> str:
    needs = ", ".join(["ddparity", *case.needs])
    lines = [
        "Shows where a distributed training stops agreeing with one device.",
        "",
        f"    {case.expected}".replace("\\", "/").replace('"', "'"),
        "",
        "    pip install 'ddparity[torch]'",
        "    python repro.py",
        "",
        "Exit code: 1 the finding shows, 0 it does not, 3 it cannot be told, 4 a command cannot be started.",
        f"Needs: {needs}.",
        "Made by ddparity repro. It runs two commands on the sources below, in a folder of its own, and compares them.",
        f"It holds the source of {', '.join(sources)};",
        *_inputs(case),
    ]
    return "\n".join(lines) + "\n"


def _inputs(case: Case) -> list[str]:
    if not case.is_made_up:
        return ["the scripts make their inputs themselves, so nothing was replaced and nothing of any data is here."]
    what = []
    if case.inputs.streams:
        what.append("batches that loaders or ddparity.feed hand out")
    if case.inputs.readers:
        what.append(f"what {', '.join(case.inputs.readers)} return")
    if case.inputs.datasets:
        what.append("items of datasets that cannot be read here")
    return [
        "and in place of the data only a description: structure, shapes, dtypes, ranges, padding. Made up from it are",
        f"{'; '.join(what)}: the same ones for the control and for every rank.",
    ]


def _literal(text: str) -> str:
    """Return a source as a readable literal, or escaped where that would not be the same text."""
    for quotes in ("'''", '"""'):
        if quotes not in text and "\r" not in text and "\0" not in text and not text.endswith((quotes[0], "\\")):
            return f"r{quotes}{text}{quotes}"
    return repr(text)
