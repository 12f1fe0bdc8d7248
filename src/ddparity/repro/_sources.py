"""The user's own sources: are they those that ran, what else do they need, and what of them must not come along."""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterable, Mapping
from pathlib import Path

from ddparity._errors import UsageError
from ddparity.bundle._scrub import Scrubber
from ddparity.capture._fingerprint import short_hash
from ddparity.trace import Trial

_OWN = Path(__file__).parents[1]
_SECRET_NAME = re.compile(r"(?i)\w*(?:token|secret|passw(?:or)?d|passphrase|api_?key|access_?key|credential)\w*")
_SECRET_VALUE = re.compile(r"[A-Za-z0-9_\-+/=.]{12,}")
_LITERALS = (tokenize.STRING, tokenize.COMMENT, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING))
_LIGHT = frozenset({"torch", "numpy", "ddparity"})
"""Packages that a reproduction has in any case."""


def read_sources(trials: Iterable[Trial]) -> dict[Path, str]:
    """Return the text of every file that the trials' scripts consist of, by absolute path.

    Raises:
        UsageError: A file is gone, was changed since it ran, or is no text.
    """
    hashes: dict[str, str] = {}
    for trial in trials:
        for rank in trial.ranks[:1]:
            hashes |= rank.facts.sources
    found: dict[Path, str] = {}
    for name, digest in hashes.items():
        path = Path(name)
        if not path.is_relative_to(_OWN):
            found[path] = _text(path, digest)
    if not found and not hashes:
        raise UsageError(
            "The trial does not know its sources: no rank left its facts, or an older ddparity recorded it. "
            "Record control and candidate again, on this machine."
        )
    return found


def _text(path: Path, digest: str) -> str:
    try:
        data = path.read_bytes()
        text = data.decode("utf-8")
    except OSError as error:
        raise UsageError(
            f"{str(path)!r} ran in the trial and cannot be read here ({error.strerror}). A reproduction is made on the "
            "machine where the trial was recorded, with its files in place; record the trial again if they moved."
        ) from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{str(path)!r} is not UTF-8 text and cannot come along. Save it as UTF-8.") from error
    if short_hash(data) != digest:
        raise UsageError(
            f"{str(path)!r} was changed since the trial was recorded. Record control and candidate again, then: "
            "ddparity repro CANDIDATE"
        )
    return text


def cleaned(text: str, scrub: Scrubber) -> str:
    """Return a source without names of people, hosts and folders, and without keys, in its literals and comments.

    Identifiers are left alone: a program with other ones is another program.
    """
    lines = text.splitlines(keepends=True)
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    except (tokenize.TokenError, SyntaxError):
        return scrub.text(text)  # configuration
    for number in range(len(tokens) - 1, -1, -1):
        token = tokens[number]
        if token.type in _LITERALS:
            new = _without_secret(token.string, tokens[max(0, number - 2) : number]) or scrub.plain(token.string)
            if new != token.string:
                _replace(lines, token, new)
    return "".join(lines)


def _without_secret(literal: str, before: list[tokenize.TokenInfo]) -> str | None:
    """Return another literal for one that is assigned to what is called like a secret and looks like one."""
    if (
        len(before) < 2
        or before[1].string not in ("=", ":")
        or not _SECRET_NAME.fullmatch(before[0].string.strip("'\""))
    ):
        return None
    inner = literal.strip("rbfRBF").strip("'\"")
    return repr("<SECRET>") if _SECRET_VALUE.fullmatch(inner) and re.search(r"\d", inner) else None


def _replace(lines: list[str], token: tokenize.TokenInfo, new: str) -> None:
    (first, start), (last, stop) = token.start, token.end
    lines[first - 1 : last] = [lines[first - 1][:start] + new + lines[last - 1][stop:]]


def imported(sources: Mapping[str, str], modules: Iterable[str]) -> dict[str, set[str]]:
    """Return the packages that sources import, neither Python's nor their own, and the names taken from each.

    Args:
        sources: Text by file.
        modules: Top-level names that the sources themselves define.

    Returns:
        Package -> dotted names imported from it (``sklearn.datasets.load_digits``); ``""`` where a whole module is.
    """
    own = {*modules, "__main__"}
    found: dict[str, set[str]] = {}
    for name, text in sources.items():
        for node in ast.walk(ast.parse(text)) if name.endswith(".py") else ():
            pairs: list[tuple[str, str]] = []
            if isinstance(node, ast.Import):
                pairs = [(alias.name, "") for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                pairs = [(node.module, f"{node.module}.{alias.name}") for alias in node.names]
            for module, taken in pairs:
                top = module.partition(".")[0]
                if top not in own and top not in sys.stdlib_module_names and top != "ddparity":
                    found.setdefault(top, set()).add(taken)
    return found


def needs_and_stand_ins(taken: Mapping[str, set[str]], readers: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return the packages that have to be installed, and the functions of others that are made up."""
    known = set(readers)
    rest = {package: names for package, names in taken.items() if package not in _LIGHT}
    if rest and all(names <= known for names in rest.values()):
        return sorted({"torch"} | (taken.keys() & _LIGHT)), sorted(name for names in rest.values() for name in names)
    return sorted({"torch", *taken}), []
