"""The table of causes: whole, used, explained, and the same as its pages."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from ddparity._errors import ExitCode, UsageError
from ddparity.judge import _causes as causes
from ddparity.judge import find_cause, known_causes
from ddparity.report import render_cause
from ddparity.report._cause_pages import cause_pages

ROOT = Path(__file__).parents[1]
JUDGE = ROOT / "src" / "ddparity" / "judge"
CODES = {known.code for known in known_causes()}


def codes_in(text: str, table: frozenset[str] | set[str]) -> set[str]:
    """Return the strings of a source that are codes, or that are used as the code of a cause."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in table:
            found.add(node.value)
        if isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) == "cause":
            first = node.args[0] if node.args else None
            found |= {n.value for n in ast.walk(first) if _is_text(n)} if isinstance(first, ast.Constant) else set()
            if isinstance(first, ast.IfExp):
                found |= {branch.value for branch in (first.body, first.orelse) if _is_text(branch)}
    return found


def _is_text(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def used() -> set[str]:
    sources = [path for path in JUDGE.glob("*.py") if not path.name.startswith("_cause")]
    return set().union(*(codes_in(path.read_text(encoding="utf-8"), CODES) for path in sources))


def test_every_code_that_the_judge_uses_is_in_the_table_and_the_other_way_round():
    assert used() - CODES == set(), "used by the judge and not in the table"
    assert CODES - used() == set(), "in the table and used by nobody"


def test_the_search_for_codes_finds_what_is_not_in_the_table():
    assert codes_in("_causes.cause('a.b' if x else 'c.d', LIKELY)", set()) == {"a.b", "c.d"}
    assert codes_in("cause('e.f', detail='no code')", set()) == {"e.f"}


def test_codes_are_unique():
    assert len(CODES) == len(known_causes())


@pytest.mark.parametrize("known", known_causes(), ids=lambda known: known.code)
def test_an_entry_says_everything_in_sentences(known):
    assert known.alike
    for text in (known.meaning, known.evidence, known.fix, *known.alike):
        assert text.endswith(".")
        assert "  " not in text
    for case in known.alike:
        code, _, rest = case.partition(": ")
        assert code in CODES - {known.code}, f"{case!r} points at no other cause"
        assert rest
    assert ". " not in known.fix, "the fix is one sentence"


def test_cause_and_advice_come_from_the_table():
    made = causes.cause("grad.summed", causes.LIKELY, "The factor is 4.")
    assert (made.code, made.confidence) == ("grad.summed", "likely")
    assert made.text == f"{find_cause('grad.summed').meaning} The factor is 4."
    assert causes.advice("grad.summed") == find_cause("grad.summed").fix


def test_the_pages_are_those_of_the_table():
    folder = ROOT / "docs" / "causes"
    on_disk = {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.md")}
    assert on_disk == cause_pages(), "docs/causes is stale; make cause-pages writes it anew"


def test_the_generator_writes_the_pages_and_removes_old_ones(tmp_path):
    (tmp_path / "grad.gone.md").write_text("old")
    command = [sys.executable, "-m", "ddparity.report._cause_pages", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == ""
    assert {path.name for path in tmp_path.iterdir()} == set(cause_pages())


def explain(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("ddparity")), "explain", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_explain_tells_one_cause():
    done = explain("grad.summed")
    assert (done.returncode, done.stdout) == (ExitCode.PASS, render_cause(find_cause("grad.summed")))
    for label in ("\n  meaning   ", "\n  evidence  ", "\n  not       ", "\n  fix       "):
        assert label in done.stdout


def test_explain_lists_all_causes():
    lines = explain().stdout.splitlines()
    assert [line.split()[0] for line in lines[1:]] == [known.code for known in known_causes()]
    document = json.loads(explain("--json").stdout)
    assert {each["code"] for each in document["causes"]} == CODES
    assert set(document["causes"][0]) == {"code", "meaning", "evidence", "alike", "fix"}


def test_an_unknown_code_names_the_ones_that_are_near():
    with pytest.raises(UsageError, match=r"No cause has the code 'grad.sumed'. Near it: grad.summed"):
        find_cause("grad.sumed")
    done = explain("nonsense")
    assert done.returncode == ExitCode.USAGE
    assert done.stderr.endswith("All of them: ddparity explain\n")
