"""Dumps of PyTorch's flight recorder: read without running a pickle, and judged by the rules for rings."""

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddparity import TraceError, UsageError
from ddparity.judge import Finding
from ddparity.judge._comm_flight import flight_run, witnessed
from ddparity.judge.communication import examine
from ddparity.trace import TrialStatus
from ddparity.trace._flight import read_flight
from ddparity.trace._plain_pickle import plain_pickle

SCRIPTS = Path(__file__).parent / "scripts"
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**200), 2**200) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner, inner, inner) | st.tuples()
    ),
    max_leaves=30,
)


@given(PLAIN, st.sampled_from([3, 4, 5]))
def test_plain_data_is_read_as_pickle_reads_it(value: Any, protocol: int) -> None:
    assert plain_pickle(pickle.dumps(value, protocol=protocol)) == value


class Evil:
    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_that_would_run_something_is_refused_and_does_not_run(tmp_path: Path, protocol: int) -> None:
    data = pickle.dumps({"entries": [Evil(str(tmp_path / "made"))]}, protocol=protocol)
    with pytest.raises(TraceError, match="opcode"):
        plain_pickle(data)
    assert not (tmp_path / "made").exists()


def test_a_memo_index_of_nine_digits_costs_no_memory() -> None:
    assert plain_pickle(b"\x80\x02]r\xff\xff\xff\x3f.") == []


@given(st.integers(0, 400), st.binary(min_size=1, max_size=8))
def test_a_damaged_pickle_raises_a_trace_error_or_is_read(at: int, junk: bytes) -> None:
    data = bytearray(pickle.dumps({"entries": [{"name": f"n{i}", "sizes": [[i]]} for i in range(9)]}, protocol=2))
    data[at : at + len(junk)] = junk
    try:
        plain_pickle(bytes(data))
    except TraceError:
        return


def entry(
    seq: int, op: str = "all_reduce", group: tuple[str, str] = ("0", "default_pg"), **changes: Any
) -> dict[str, Any]:
    made = {
        "record_id": seq - 1, "process_group": group, "collective_seq_id": seq, "profiling_name": f"gloo:{op}",
        "time_created_ns": seq * 1000, "input_sizes": [[4]], "input_dtypes": ["Float"], "state": "scheduled",
        "time_discovered_completed_ns": None, "is_p2p": False, "frames": [
            {"name": "all_reduce", "filename": "/x/torch/distributed/distributed_c10d.py", "line": 3},
            {"name": "main", "filename": "/x/train.py", "line": 10 + seq},
        ],
    }  # fmt: skip
    return {**made, **changes}


def write(folder: Path, programs: list[list[dict[str, Any]]], *, as_json: bool = False) -> Path:
    for rank, entries in enumerate(programs):
        document = {"version": "2.10", "pg_config": {"": {"name": "", "ranks": "[]"}}, "entries": entries}
        if as_json:
            (folder / f"rank_{rank}.json").write_text(json.dumps(document))
        else:
            (folder / f"rank_{rank}").write_bytes(pickle.dumps(document, protocol=2))
    return folder


def judged(folder: Path) -> list[Finding]:
    return examine(flight_run(read_flight(folder)), status=TrialStatus.FAILED)[1]


@pytest.mark.parametrize("as_json", [False, True])
def test_the_first_call_that_does_not_fit_is_found_with_both_places(tmp_path: Path, as_json: bool) -> None:
    good = [entry(1), entry(2)]
    folder = write(tmp_path, [[*good, entry(3)], [*good, entry(3, "barrier")]], as_json=as_json)
    first, *_ = judged(folder)
    assert (first.cause.code, first.evidence["call"], first.ranks) == ("collective.operation", 3, [0, 1])
    assert "train.py:13" in first.evidence["rank 0"]
    assert "train.py:13" in first.evidence["rank 1"]


def test_a_rank_that_made_a_call_less_is_named_and_nothing_claimed_of_how_it_ended(tmp_path: Path) -> None:
    (first,) = judged(write(tmp_path, [[entry(1), entry(2)], [entry(1)]]))
    assert (first.cause.code, first.ranks, first.cause.confidence) == ("collective.missing", [1], "likely")


def test_groups_are_told_apart_although_gloo_leaves_the_table_empty(tmp_path: Path) -> None:
    pairs = [("1", "undefined"), ("2", "undefined")]
    programs = [[entry(1), entry(1, group=pairs[rank // 2]), entry(2)] for rank in range(4)]
    run = flight_run(read_flight(write(tmp_path, programs)))
    assert {name: group.ranks for name, group in run.groups.items()} == {
        "world": [0, 1, 2, 3], "group 1": [0, 1], "group 2": [2, 3]
    }  # fmt: skip
    assert examine(run, status=TrialStatus.FAILED) == (4, [])
    assert witnessed(run, run)[0] == "group 1: last call by rank 0: #1, 1: #1"


def test_of_a_rank_with_two_dumps_json_is_read(tmp_path: Path) -> None:
    write(tmp_path, [[entry(1)]])
    write(tmp_path, [[entry(1), entry(2)]], as_json=True)
    (dump,) = read_flight(tmp_path)
    assert (dump.path.suffix, len(dump.calls)) == (".json", 2)


def test_what_is_no_dump_is_refused_with_the_next_step(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="rank_0"):
        read_flight(tmp_path)
    (tmp_path / "rank_0").write_bytes(b'{"entries": 7}')
    with pytest.raises(TraceError, match="not a dump"):
        read_flight(tmp_path)
    (tmp_path / "rank_0").write_bytes(b"\x80\x02cos\nsystem\n.")
    with pytest.raises(TraceError, match="opcode"):
        read_flight(tmp_path)


@pytest.mark.slow
def test_dumps_of_real_ranks_that_nobody_recorded_explain_a_hang(tmp_path: Path) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "FAULT_DUMPS": str(tmp_path), "FAULT_TIMEOUT": "4"}
    command = [*launcher, str(SCRIPTS / "comm_faults.py"), "extra"]
    subprocess.run(command, env=env, capture_output=True, timeout=90, check=False)
    for dump in tmp_path.glob("*.json"):
        dump.unlink()
    ddparity = str(Path(sys.executable).with_name("ddparity"))
    done = subprocess.run(
        [ddparity, "hang", "--flight-recorder", str(tmp_path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert "collective.operation" in done.stdout
    assert done.stdout.count("comm_faults.py:") >= 2
