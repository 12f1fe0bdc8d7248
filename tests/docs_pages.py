"""The pages of the documentation as data: headings, links, blocks, and the commands that they show."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    [ROOT / name for name in ("README.md", "README.zh-CN.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    + list((ROOT / "docs").rglob("*.md"))
)
_FENCE = re.compile(r"^```(\S*)(.*?)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"(?<=\n\n)((?: {4}\S.*\n)+)")
_INLINE = re.compile(r"(?<!`)`(ddparity [^`]+)`(?!`)", re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, the rest of the line of its fence, and its text."""

    language: str
    rest: str
    text: str


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path) -> list[Block]:
    return [Block(*match.groups()) for match in _FENCE.finditer(page.read_text(encoding="utf-8"))]


def without_code(page: Path) -> str:
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    return re.sub(r"`[^`\n]+`", lambda match: "`" + "x" * (len(match[0]) - 2) + "`", text)


def links(page: Path) -> list[str]:
    return [link for link in re.findall(r"\]\(([^)\s]+)\)", without_code(page)) if "://" not in link]


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as Python-Markdown and GitHub make them."""
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE):
        plain = re.sub(r"[^\w\s.-]", "", heading.replace("`", "").lower())
        found |= {re.sub(r"\s", "-", plain.strip()), re.sub(r"[\s-]+", "-", plain.replace(".", "").strip())}
    return found


def lines(text: str) -> Iterator[str]:
    """Yield the commands of a block: comments gone, continued lines joined."""
    for line in text.replace("\\\n", " ").splitlines():
        line = re.sub(r"(^|\s)#\s.*", "", line).strip()
        if line:
            yield line


def listings(page: Path) -> list[str]:
    """Return what a page shows of a shell: fenced blocks, then indented ones."""
    found = [each.text for each in blocks(page) if each.language in ("sh", "bash", "console", "")]
    return found + [match[1] for match in _INDENTED.finditer(_FENCE.sub("", page.read_text(encoding="utf-8")))]


def shown_commands(page: Path) -> Iterator[tuple[list[str], bool]]:
    """Yield each ``ddparity`` command that a page shows, as words, and whether it stands whole in a block."""
    text = page.read_text(encoding="utf-8")
    for listing in listings(page):
        for line in lines(listing):
            if line.startswith("ddparity "):
                yield words(line), True
    for match in _INLINE.finditer(_FENCE.sub("", text)):
        yield words(" ".join(match[1].split())), False


def words(line: str) -> list[str]:
    """Return the words after ``ddparity``, up to a pipe, a redirection or the next command."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    lexer.commenters = ""
    found = []
    for word in list(lexer)[1:]:
        if set(word) <= set("|&;<>"):
            break
        found.append(word)
    return found
