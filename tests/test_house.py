"""The rules of the house that no linter knows."""

import ast
import importlib
import json
import pkgutil
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

import ddparity

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "src" / "ddparity"
MAX_LINES = 400
PACKAGES = ["ddparity", *(f"ddparity.{m.name}" for m in pkgutil.iter_modules(ddparity.__path__) if m.ispkg)]
HEAVY = ("torch", "sklearn", "fastapi", "pydantic")


@pytest.mark.parametrize("package", PACKAGES)
def test_every_exported_name_resolves(package: str) -> None:
    module = importlib.import_module(package)
    names = getattr(module, "__all__", [])
    assert [name for name in names if not hasattr(module, name)] == []
    assert len(names) == len(set(names))


@pytest.mark.parametrize("path", sorted(SOURCES.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCES)))
def test_no_file_has_two_subjects(path: Path) -> None:
    assert path.stem.strip("_") not in {"utils", "util", "helpers", "common", "misc"}
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MAX_LINES


def test_every_module_says_what_it_is_for() -> None:
    silent = [str(p.relative_to(SOURCES)) for p in SOURCES.rglob("*.py") if not ast.get_docstring(_tree(p))]
    assert silent == []


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _loaded_by(statement: str) -> set[str]:
    """Return which of the heavy libraries a fresh interpreter has loaded after ``statement``."""
    code = f"{statement}; import json, sys; print(json.dumps([n for n in {HEAVY!r} if n in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize(
    "statement",
    [
        "import ddparity",
        "import ddparity.cli",
        "import ddparity.judge",
        "import ddparity.report",
        "import ddparity.repro",
        "import ddparity.trials",
    ],
)
def test_nothing_but_recording_loads_torch(statement: str) -> None:
    assert _loaded_by(statement) == set()


def test_the_test_of_what_is_loaded_can_fail() -> None:
    assert "torch" in _loaded_by("import torch")


def test_help_loads_no_torch() -> None:
    code = "import sys; sys.argv = ['ddparity', '--help']; from ddparity.cli import main\n"
    code += "try: main()\nexcept SystemExit: pass"
    assert _loaded_by(f"exec({code!r})") == set()


def test_the_version_is_that_of_the_metadata() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert metadata.version("ddparity") == project["version"]
    assert ddparity.__version__ == project["version"]


def test_dependencies_have_lower_bounds_only() -> None:
    """Installing ddparity never replaces what a training image brings."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    bounds = [*project["dependencies"], *(line for lines in extras.values() for line in lines)]
    assert [line for line in bounds if "<" in line or "==" in line or "~=" in line] == []
    assert not [line for line in project["dependencies"] if line.startswith("torch")]


def test_the_changelog_knows_this_version() -> None:
    assert f"## {metadata.version('ddparity')}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_package_is_typed() -> None:
    assert (SOURCES / "py.typed").is_file()


def test_the_zoo_is_whole() -> None:
    rows = [json.loads(line) for line in (ROOT / "zoo" / "manifest.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len(rows) == 50
    assert {row["file"] for row in rows} == {path.name for path in (ROOT / "zoo").glob("*.py")}
    assert sum(row["benign"] for row in rows) == 2
