"""Running a zoo: what is refused before anything runs, and some rows for real."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ddparity._errors import UsageError
from ddparity.trials._zoo import find_zoo, read_manifest, select

ZOO = Path(__file__).parents[1] / "zoo"
ROW = {"name": "a", "file": "a.py", "layer": "numerics", "parallelism": "ddp", "nproc": 2}


def a_zoo(folder: Path, *rows: dict[str, Any] | str) -> Path:
    for row in rows:
        if isinstance(row, dict) and "/" not in row["file"]:
            (folder / row["file"]).touch()
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    (folder / "manifest.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def test_the_zoo_here_is_taken_before_that_of_the_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_zoo() == ZOO
    (tmp_path / "zoo").mkdir()
    a_zoo(tmp_path / "zoo", ROW)
    assert find_zoo() == tmp_path / "zoo"


def test_a_folder_without_a_manifest_is_no_zoo(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"No manifest.jsonl in .*ddparity zoo run --zoo DIR"):
        find_zoo(tmp_path)


def test_the_public_zoo_is_read_whole() -> None:
    rows = read_manifest(ZOO)
    assert len(rows) == 50
    assert rows[0].name == "loss_norm_grad_accum"
    assert rows[0].locus.names == ["loss"]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["{"], "line 1: not a row"),
        ([ROW, '{"name": 3}'], "line 2: not a row"),
        ([ROW, ROW], "line 2: the name 'a' stands in an earlier line too"),
        ([ROW | {"file": "../a.py"}], "'../a.py' is not a script in"),
        ([ROW | {"nproc": 0}], "nproc 0 cannot be used"),
    ],
)
def test_a_manifest_that_cannot_be_used_is_named_by_line(tmp_path: Path, rows: list[Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_manifest(a_zoo(tmp_path, *rows))


def test_rows_are_chosen_by_name_layer_and_parallelism_in_the_manifests_order() -> None:
    rows = read_manifest(ZOO)
    assert [row.name for row in select(rows)] == [row.name for row in rows]
    assert [row.name for row in select(rows, ["bn_local_stats", "ddp_double_divide"])] == [
        "ddp_double_divide",
        "bn_local_stats",
    ]
    chosen = select(rows, layer="numerics", parallelism="fsdp")
    assert {row.name for row in chosen} > {"fsdp_clip_local_norm"}
    assert {(row.layer, row.parallelism) for row in chosen} == {("numerics", "fsdp")}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"names": ["ddp_double_divid"]}, "No row 'ddp_double_divid' in the zoo. Did you mean: ddp_double_divide"),
        ({"layer": "numeric"}, "No layer 'numeric' in the zoo. Did you mean: numerics"),
        ({"parallelism": "zz"}, "No parallelism 'zz' in the zoo. There are: ddp"),
        ({"names": ["ddp_double_divide"], "layer": "memory"}, "No row of the zoo is left"),
    ],
)
def test_what_is_not_in_the_zoo_is_refused_with_what_is_near(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        select(read_manifest(ZOO), **arguments)


def zoo_run(*arguments: str) -> tuple[int, dict[str, Any]]:
    """Run ``ddparity zoo run ... --json`` as a user does; return exit code and document."""
    program = "from ddparity.cli import main; main()"
    command = [sys.executable, "-c", program, "zoo", "run", *arguments, "--zoo", str(ZOO), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode in (0, 1), done.stderr
    return done.returncode, json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.timeout(420)
def test_faults_are_detected_and_located_and_look_alikes_are_left_alone() -> None:
    names = ["ddp_double_divide", "bn_local_stats", "uneven_tokens_ddp", "control_ddp_seed_per_rank"]
    code, document = zoo_run(*names, "--jobs", "2")
    rows = {row["name"]: row for row in document["rows"]}
    assert set(rows) == set(names)
    assert [row["name"] for row in document["rows"] if not row["clean_pass"]] == []
    assert [row["name"] for row in document["rows"] if not row["detected"]] == []
    assert [row["name"] for row in document["rows"] if row["located"] is False] == []
    assert rows["control_ddp_seed_per_rank"]["located"] is None
    assert (document["detected"], document["located"], document["false_alarms"]) == ("3/3", "3/3", "0/5")
    assert code == 0
