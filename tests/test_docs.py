"""The documentation keeps to the truth: links lead somewhere, commands exist, and what is shown was really printed."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

from ddparity.cli._app import build
from ddparity.cli._json_page import json_page
from ddparity.cli._reference_page import reference_page
from docs_pages import PAGES, ROOT, Block, anchors, blocks, lines, links, name_of, shown_commands

README, CHINESE = ROOT / "README.md", ROOT / "README.zh-CN.md"
TRIED = [README, ROOT / "docs" / "first-five-minutes.md", ROOT / "docs" / "tutorial.md"]
"""Pages whose commands are run. The Chinese page has those of the English one, which a test says."""
NOT_RUN = ("pip ", "make ", "git ")
FINE = {0, 1, 3}
"""Exit codes of a command that did its work: pass, a deviation, inconclusive."""
EACH = pytest.mark.parametrize("page", PAGES, ids=name_of)


@EACH
def test_every_link_leads_somewhere(page: Path) -> None:
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = page if not path else (page.parent / path).resolve()
        assert target.exists(), f"{name_of(page)} links to {link}, which is not there"
        if anchor:
            assert anchor in anchors(target), f"{name_of(page)} links to {link}; {path} has {sorted(anchors(target))}"


def test_every_page_stands_in_the_navigation() -> None:
    navigation = (ROOT / "zensical.toml").read_text(encoding="utf-8")
    missing = [
        name
        for name in (page.relative_to(ROOT / "docs").as_posix() for page in PAGES if (ROOT / "docs") in page.parents)
        if f'"{name}"' not in navigation and not re.fullmatch(r"causes/(?!index).*", name)
    ]
    assert missing == []


@pytest.fixture(scope="module")
def application() -> Any:
    return typer.main.get_command(build())


@EACH
def test_every_command_exists_with_its_options(page: Path, application: Any) -> None:
    for command, whole in shown_commands(page):
        problem = refused(application, command, whole=whole)
        assert problem is None, f"{name_of(page)}: ddparity {' '.join(command)}: {problem}"


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["recrod", "--", "true"], "No such command"),
        (["trials", "lost"], "No such command"),
        (["compare", "a", "b", "--jsno"], "No such option"),
        (["compare", "a"], "Missing argument"),
        (["ladder", "--accum", "four", "--", "train.py"], "Invalid value for '--accum'"),
    ],
)
def test_the_test_of_commands_can_fail(command: list[str], words: str, application: Any) -> None:
    problem = refused(application, command, whole=True)
    assert problem is not None
    assert words in problem


def refused(application: Any, command: list[str], *, whole: bool) -> str | None:
    """Return why the real command line would refuse a command; one in a sentence may be cut short."""
    with application.make_context("ddparity", [], resilient_parsing=True) as context:
        while (commands := getattr(application, "commands", None)) is not None:
            if not command or command[0].startswith("-"):
                break
            name, *command = command
            if name not in commands:
                return f"No such command {name!r}" if whole or name.islower() else None
            application = commands[name]
        try:
            if whole:
                application.make_context(application.name, list(command), parent=context)
            else:
                made = type(context)(application, parent=context)
                application.make_parser(made).parse_args(list(command))
        except typer.Exit:
            return None
        except Exception as error:
            return error.format_message() if hasattr(error, "format_message") else str(error)
    return None


@pytest.mark.parametrize(("name", "made"), [("cli.md", reference_page), ("json.md", json_page)])
def test_the_reference_is_that_of_the_program(name: str, made: Callable[[], str]) -> None:
    page = ROOT / "docs" / "reference" / name
    assert page.read_text(encoding="utf-8") == made(), "write it anew: make cli-pages"


@pytest.mark.parametrize("broken", [False, True], ids=["as it is", "with a broken link"])
def test_the_site_is_built_without_a_warning(broken: bool, tmp_path: Path) -> None:
    pytest.importorskip("zensical")
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    shutil.copy(ROOT / "zensical.toml", tmp_path)
    if broken:
        (tmp_path / "docs" / "index.md").write_text("[nowhere](nowhere.md)\n")
    command = [sys.executable, "-m", "zensical", "build", "--strict"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode == 0) is not broken, done.stdout + done.stderr


def test_both_readmes_show_the_same_code() -> None:
    assert [block for block in blocks(CHINESE) if block.language != "text"] == [
        block for block in blocks(README) if block.language != "text"
    ]
    assert [b.language for b in blocks(CHINESE)] == [b.language for b in blocks(README)]
    for each in (README, CHINESE):
        assert len(each.read_text(encoding="utf-8").splitlines()) <= 170


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", TRIED, ids=name_of)
def test_every_command_of_the_page_prints_what_it_shows(page: Path, tmp_path: Path) -> None:
    if page == README:
        save_scripts(ROOT / "docs" / "first-five-minutes.md", tmp_path)
    printed = ""
    with Terminal(tmp_path) as terminal:
        for block in blocks(page):
            if block.language in ("python", "diff"):
                save(block, tmp_path)
            elif block.language == "sh":
                printed = "".join(map(terminal.run, lines(block.text)))
            elif block.language == "text":
                hold(block.text, printed)


def save_scripts(page: Path, folder: Path) -> None:
    for block in blocks(page):
        if block.language == "python":
            save(block, folder)


def save(block: Block, folder: Path) -> None:
    """Write down a script whose fence says its name, ``python title="train.py"``, or change it as a ``diff`` says."""
    name = re.search(r'title="([^"]+)"', block.rest)
    if name is None:
        return
    path, text = folder / name[1], block.text
    if block.language == "diff":
        old, new = (re.sub("^.", "", "".join(re.findall(f"^[{sign}].*\n", text, re.M)), flags=re.M) for sign in "-+")
        text = path.read_text(encoding="utf-8")
        assert text.count(old) == 1, f"{path.name} has no line {old}"
        text = text.replace(old, new)
    path.write_text(text, encoding="utf-8")


def hold(shown: str, printed: str) -> None:
    """Every line that a page shows was printed, in that order; numbers and ids may be others, ``...`` is anything."""
    rest = [bare(line) for line in printed.splitlines()]
    for line in filter(None, map(str.strip, shown.splitlines())):
        if line != "...":
            beginning, cut, _ = bare(line).partition("...")
            fits = (n for n, have in enumerate(rest) if have.startswith(beginning) and (cut or have == beginning))
            where = next(fits, None)
            assert where is not None, f"not printed: {line}\n{printed}"
            rest = rest[where + 1 :]


def bare(line: str) -> str:
    """Return a line without its numbers, ids of trials and spaces."""
    line = re.sub(r"\d{8}-\d{9}-([\w-]+?)-[0-9a-f]{4}\b", r"ID-\1", line)
    return " ".join(re.sub(r"-?\d[\d,.]*(e[-+]?\d+)?", "#", line).split())


def test_the_test_of_what_is_shown_can_fail() -> None:
    hold("loss 2.31\n...\n  done in ...", "a\nloss  -0.5e-07\nb\ndone in 3 s")
    with pytest.raises(AssertionError, match="not printed: done"):
        hold("loss 1\ndone", "done\nloss 1\ndone it is")


class Terminal:
    """Runs commands one after the other in a folder, as a reader would; a gateway goes on in the background."""

    def __init__(self, folder: Path, **env: str) -> None:
        self._folder = folder
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        settings = {"OMP_NUM_THREADS": "1", "COLUMNS": "200", "DDPARITY_GATEWAY_PORT": "0", "PYTHONUNBUFFERED": "1"}
        self._env = {**os.environ, "PATH": path, **settings, **env}
        self._background: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._background:
            process.send_signal(signal.SIGINT)
            process.wait(timeout=60)

    def run(self, line: str) -> str:
        """Run one command and return what it printed, standard error included."""
        if line.startswith(NOT_RUN):
            return ""
        if line.startswith("ddparity serve"):
            return self._serve(line)
        whole = {"cwd": self._folder, "env": self._env, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        done = subprocess.run(line, shell=True, executable="/bin/bash", timeout=400, check=False, **whole)
        text = done.stdout.decode(errors="replace")
        assert done.returncode in FINE, f"{line}: exit code {done.returncode}\n{text}"
        return text

    def _serve(self, line: str) -> str:
        output = (self._folder / "serve.log").open("wb")
        with output:
            words = ["/bin/bash", "-c", f"exec {line}"]
            process = subprocess.Popen(words, cwd=self._folder, env=self._env, stdout=output, stderr=output)
        self._background.append(process)
        written = self._folder / ".ddparity" / "gateway.json"
        for _ in range(600):
            if written.exists() or process.poll() is not None:
                break
            time.sleep(0.1)
        assert written.exists(), (self._folder / "serve.log").read_text()
        return (self._folder / "serve.log").read_text()
