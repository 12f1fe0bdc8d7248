"""Every command of the how-to pages is run, in a folder that holds what the pages speak of; each works.

The pages whose output stands beside their commands are in test_docs.py.
"""

import json
import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from docs_pages import PAGES, Block, blocks, lines, listings, name_of
from test_docs import TRIED, Terminal

SCRIPT = Path(__file__).parent / "scripts" / "documented.py"
RECIPE = Path(__file__).parent / "scripts" / "memory_recipe.py"
SAID = ("README.md", "README.zh-CN.md", "docs/benchmarks.md", "docs/reference/cli.md")
"""Pages whose commands stand on others of these, or are measured and not shown."""
CODE = [page for page in PAGES if any(each.language == "python" for each in blocks(page)) and page not in TRIED]


def commands(page: Path) -> list[str]:
    shown = [line for listing in listings(page) for line in lines(listing)]
    return [line for line in shown if line.startswith(("ddparity ", "python ", "torchrun "))]


HOW_TO = [page for page in PAGES if page not in TRIED and name_of(page) not in SAID and commands(page)]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with script, recipe, checkpoint, a control, a candidate that deviates, and a bundle of both."""
    folder = tmp_path_factory.mktemp("how-to")
    shutil.copy(SCRIPT, folder / "train.py")
    shutil.copy(RECIPE, folder / "recipe.py")
    (folder / "trainings").mkdir()
    shutil.copy(SCRIPT, folder / "trainings" / "train.py")
    (folder / "ckpt" / "step-1000").mkdir(parents=True)
    (folder / "ckpt" / "step-1000" / "model.bin").write_bytes(os.urandom(1000))
    (folder / "dumps").mkdir()
    for rank in (0, 1):
        (folder / "dumps" / f"trace_{rank}").write_text(json.dumps(dump(rank)))
    with Terminal(folder) as terminal:
        terminal.run("ddparity record --control --name single -- python train.py --batch-size 32")
        terminal.run("ddparity record --name ddp2 -- torchrun --nproc-per-node 2 train.py --batch-size 16 --unreduced")
        terminal.run("ddparity bundle ddp2 -o case.zip")
    return folder


def dump(rank: int) -> dict[str, object]:
    """Return a dump of the flight recorder: rank 1 called another operation second."""
    calls = [
        {
            "collective_seq_id": number,
            "p2p_seq_id": 0,
            "op_id": number,
            "pg_id": 0,
            "process_group": ["0", "default_pg"],
            "profiling_name": f"gloo:{name}",
            "input_sizes": [[4]],
            "input_dtypes": ["Float"],
            "output_sizes": [[4]],
            "output_dtypes": ["Float"],
            "state": "completed" if number == 1 else "scheduled",
            "time_created_ns": number,
            "is_p2p": False,
            "retired": number == 1,
            "timeout_ms": 10000,
            "frames": [],
        }
        for number, name in ((1, "all_reduce"), (2, "broadcast" if rank else "all_reduce"))
    ]
    return {"version": "2.9", "pg_config": {}, "pg_status": {}, "entries": calls}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", HOW_TO, ids=name_of)
def test_every_command_of_the_page_works(page: Path, prepared: Path, tmp_path: Path) -> None:
    folder = tmp_path / "here"
    shutil.copytree(prepared, folder)
    with Terminal(folder, HOME=str(folder)) as terminal:
        for line in commands(page):
            print(terminal.run(filled(line, terminal)))


def filled(line: str, terminal: Terminal) -> str:
    """Return a command with what a page leaves to its reader."""
    if re.search(r"\bNAME\b", line):
        line = re.sub(r"\bNAME\b", json.loads(terminal.run("ddparity jobs --json"))["jobs"][0]["job_id"], line)
    return re.sub(r"\bTRIAL\b", "ddp2", re.sub(r"\bFOLDER\b", "dumps", line))


def test_pages_that_are_run_are_those_of_the_documentation() -> None:
    assert {"docs/data.md", "docs/ladder.md", "docs/preflight.md", "docs/gateway.md"} <= set(map(name_of, HOW_TO))
    assert {"docs/pytest.md", "docs/gateway.md"} <= set(map(name_of, CODE))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", CODE, ids=name_of)
def test_the_code_of_the_page_works(page: Path, prepared: Path, tmp_path: Path) -> None:
    """Tests are run by pytest in a folder with the script, calls of a gateway beside one; a few lines that stand in
    somebody's script are compiled, and what they import is there."""
    folder = tmp_path / "here"
    shutil.copytree(prepared, folder)
    with Terminal(folder, HOME=str(folder)) as terminal:
        for block in blocks(page):
            if block.language == "python":
                try_out(block, folder, terminal)


def try_out(block: Block, folder: Path, terminal: Terminal) -> None:
    compile(block.text, "block", "exec")
    path = folder / "test_shown.py"
    is_whole = "..." not in block.text and ("def test_" in block.text or "ddparity.gateway" in block.text)
    imports = [line for line in block.text.splitlines(keepends=True) if line.startswith(("import ", "from "))]
    path.write_text(block.text if is_whole else "".join(imports))
    if "ddparity.gateway" in block.text:
        terminal.run("ddparity serve --root ~/trainings")
    if is_whole and "def test_" in block.text:
        assert "1 passed" in terminal.run(f"{sys.executable} -m pytest -p no:cacheprovider --rootdir . {path}")
    else:
        terminal.run(f"{sys.executable} {path}")


def test_every_page_with_a_command_is_tried_or_said_why() -> None:
    named = {name_of(page) for page in [*HOW_TO, *TRIED]} | set(SAID)
    assert [name_of(page) for page in PAGES if commands(page) and name_of(page) not in named] == []
