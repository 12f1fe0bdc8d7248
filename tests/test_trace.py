"""What was written is read back; whatever else is in a file ends in a TraceError, never in a crash."""

import contextlib
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from ddparity._errors import TraceError
from ddparity.digest import digest_of, same
from ddparity.trace import (
    Event,
    RankFacts,
    RankStatus,
    RankTrace,
    RankWriter,
    Site,
    TrialFacts,
    read_json,
    read_stream,
    read_trial,
    write_atomically,
)
from ddparity.trace import _streams as streams

ROWS_A_BATCH = 12


def facts(rank: int = 0, world_size: int = 1) -> RankFacts:
    return RankFacts(rank=rank, local_rank=rank, world_size=world_size, pid=1, hostname="host")


def new_trial(folder: Path) -> Path:
    folder.mkdir()
    trial = TrialFacts(id="t1", name="name", command=["python", "train.py"], cwd="/")
    write_atomically(folder / "trial.json", msgspec.json.encode(trial))
    return folder


def array(number: int) -> np.ndarray:
    return np.random.default_rng(number).standard_normal((4, 3 + number % ROWS_A_BATCH)).astype(np.float32)


def write_batch(writer: RankWriter, number: int) -> None:
    """Write the rows of one flush."""
    for i in range(ROWS_A_BATCH):
        digest = digest_of(array(i))
        writer.digest(digest, site=Site.ACTIVATION, name=f"layer.{i}", step=number, batch=1, rows=1, flags=5)
    writer.load((number, number, 0, 0, number, 5, -1, 0, np.arange(2, dtype=np.uint64) + np.uint64(number)))
    writer.samples(step=number, batch=0, root="", training=True, ids=np.arange(3, dtype=np.uint64) << np.uint64(62))
    writer.event(Event.METRIC, step=number, name="accuracy", value=0.5, note="ä", nested={"list": [1, None]})
    writer.flush()


def write_rank(folder: Path, batches: int = 3) -> Path:
    writer = RankWriter(folder, facts())
    for number in range(batches):
        write_batch(writer, number)
    writer.close()
    return folder


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    trial = new_trial(tmp_path_factory.mktemp("trace") / "trial")
    write_rank(trial / "rank-00000")
    return trial


def read_all(rank: RankTrace) -> tuple[int, int, int]:
    return len(rank.digests), len(rank.samples), len(rank.events)


# -- round trip -------------------------------------------------------------------------------------------------------


def test_what_was_written_is_read(written: Path) -> None:
    trial = read_trial(written)
    (rank,) = trial.ranks
    assert (trial.facts.name, trial.world_size, trial.missing_ranks) == ("name", 1, [])
    assert read_all(rank) == (3 * ROWS_A_BATCH, 3, 3)
    assert rank.truncated == []
    row = rank.digests[ROWS_A_BATCH + 2]
    assert (row.site.site, row.site.name) == ("activation", "layer.2")
    assert (row.site.shape, row.site.dtype) == ((4, 5), "float32")
    assert (row.step, row.batch, row.occurrence, row.backward, row.rows, row.flags) == (1, 1, 0, 0, 1, 5)
    assert same(row.digest, digest_of(array(2)))
    assert row.digest.sum_sq == digest_of(array(2)).sum_sq
    assert row.site.offsets is None
    assert (rank.loads.number.tolist(), rank.loads.labels.tolist()) == ([0, 1, 2], [-1, -1, -1])
    assert (rank.loads.offsets.tolist(), rank.loads.ids.tolist()) == ([0, 2, 4, 6], [0, 1, 1, 2, 2, 3])
    assert list(rank.samples[1].ids) == [0, 1 << 62, 2 << 62]
    assert rank.events[2].data == {"note": "ä", "nested": {"list": [1, None]}}
    numbers = [row.seq for row in [*rank.digests, *rank.samples, *rank.events]]
    assert sorted(numbers) == list(range(1, len(numbers) + 1))


def test_extreme_values_survive(tmp_path: Path) -> None:
    writer = RankWriter(tmp_path / "rank-00000", facts())
    empty = digest_of(np.zeros((0, 5), dtype=np.complex128))
    where = {"site": Site.BUFFER, "name": "", "step": 0}
    writer.digest(empty, **where, offsets=(3, 0), global_shape=(9, 5), placement="S(0)")
    bad = digest_of(np.array(np.nan))
    writer.digest(bad, **where)
    writer.samples(step=0, batch=0, root="", training=False, ids=np.zeros(0, dtype=np.uint64))
    writer.event(Event.BACKWARD, step=0, value=float("nan"))
    writer.close()
    first, second = RankTrace(writer.folder, facts()).digests
    assert (first.site.shape, first.site.offsets, first.site.global_shape) == ((0, 5), (3, 0), (9, 5))
    assert (first.digest.minimum, first.digest.maximum) == (float("inf"), float("-inf"))
    assert (second.site.shape, second.digest.num_nan, second.digest.hash) == ((), 1, bad.hash)
    rank = RankTrace(writer.folder, facts())
    assert len(rank.samples[0].ids) == 0
    assert np.isnan(rank.events[0].value)


def test_an_empty_recording_is_read(tmp_path: Path) -> None:
    RankWriter(tmp_path / "rank-00000", facts()).close()
    rank = RankTrace(tmp_path / "rank-00000", facts())
    assert read_all(rank) == (0, 0, 0)
    assert rank.truncated == []


def test_numbers_of_numpy_are_numbers_and_nothing_a_script_holds_stops_the_recorder(tmp_path: Path) -> None:
    known = facts()
    known.hyperparameters["lr"] = np.float64(0.5)
    writer = RankWriter(tmp_path / "rank-00000", known)
    held = {"lr": np.float64(0.1), "wd": np.float32(0.5), "n": np.int64(3), "betas": [np.float64(0.9)], "x": np.ones(2)}
    writer.event(Event.OPTIMIZER, step=0, groups=[{**held, "strange": object()}])
    writer.close()
    [event] = RankTrace(tmp_path / "rank-00000", facts()).events
    plain = {"lr": 0.1, "wd": 0.5, "n": 3, "betas": [0.9], "x": [1.0, 1.0], "strange": "<object>"}
    assert event.data["groups"] == [plain]
    assert read_json(tmp_path / "rank-00000" / "rank.json", RankFacts).hyperparameters == {"lr": 0.5}


def test_a_digest_takes_at_most_1200_bytes(tmp_path: Path) -> None:
    writer = RankWriter(tmp_path / "rank-00000", facts())
    digest = digest_of(array(1))
    for step in range(3):
        for i in range(200):
            module = f"model.layers.{i // 10}.mlp.projection{i % 10}.weight"
            writer.digest(digest, site=Site.SYNCED_GRADIENT, name=module, step=step)
        writer.flush()
    writer.close()
    size = sum(path.stat().st_size for path in writer.folder.iterdir())
    assert size / 600 <= 1200


def test_a_folder_is_never_written_twice(tmp_path: Path) -> None:
    write_rank(tmp_path / "rank-00000")
    with pytest.raises(FileExistsError):
        RankWriter(tmp_path / "rank-00000", facts())


# -- a writer that dies -----------------------------------------------------------------------------------------------

DYING_WRITER = """
import sys, time
sys.path.insert(0, sys.argv[2])
from pathlib import Path
from test_trace import RankWriter, facts, write_batch
writer = RankWriter(Path(sys.argv[1]), facts())
for number in range(2):
    write_batch(writer, number)
flush, writer.flush = writer.flush, lambda: None
write_batch(writer, 2)
print("ready", flush=True)
time.sleep(60)
"""


def test_what_was_flushed_survives_kill_9(tmp_path: Path) -> None:
    trial = new_trial(tmp_path / "trial")
    command = [sys.executable, "-c", DYING_WRITER, str(trial / "rank-00000"), str(Path(__file__).parent)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        running = read_trial(trial).ranks[0]
        assert read_all(running) == (2 * ROWS_A_BATCH, 2, 2)  # also while it is still written
        process.kill()
    assert process.returncode == -signal.SIGKILL
    rank = read_trial(trial).ranks[0]
    assert rank.facts.status is RankStatus.RUNNING
    assert read_all(rank) == (2 * ROWS_A_BATCH, 2, 2)
    assert sorted(set(rank.truncated)) == ["digests", "events", "samples", "sites"]
    assert same(rank.digests[-1].digest, digest_of(array(ROWS_A_BATCH - 1)))


@pytest.mark.parametrize("stream", streams.STREAMS)
def test_a_file_cut_anywhere_gives_its_full_batches(written: Path, tmp_path: Path, stream: str) -> None:
    content = (written / "rank-00000" / f"{stream}.arrow").read_bytes()
    end_of_schema = len(streams.STREAMS[stream].serialize())
    path, before, counts = tmp_path / "cut.arrow", 0, set()
    sizes = {*range(0, len(content), max(1, len(content) // 300)), *range(len(content) - 12, len(content))}
    for size in sorted(sizes):
        path.write_bytes(content[:size])
        try:
            table, whole = read_stream(path, streams.STREAMS[stream])
        except TraceError:
            assert size < end_of_schema
            continue
        assert not whole
        assert table.num_rows >= before
        before = table.num_rows
        counts.add(before)
    full = {"digests": ROWS_A_BATCH, "sites": ROWS_A_BATCH}.get(stream, 1)
    assert counts == ({0, full} if stream == "sites" else {0, full, 2 * full, 3 * full})


def test_a_rank_killed_before_it_had_a_name_is_missing(tmp_path: Path) -> None:
    trial = new_trial(tmp_path / "trial")
    RankWriter(trial / "rank-00000", facts(0, 2)).close()
    (trial / "rank-00001").mkdir()
    (trial / "rank-00001" / "sites.arrow").touch()
    assert read_trial(trial).missing_ranks == [1]


# -- files that ddparity did not write --------------------------------------------------------------------------------

FUZZ = """
import resource, sys, random
from pathlib import Path
import pyarrow as pa
from ddparity._errors import TraceError
from ddparity.trace import RankTrace, read_trial
pa.set_cpu_count(1)
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
trial, seed, num = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
rng = random.Random(seed)
files = sorted(trial.rglob("*.arrow")) + sorted(trial.rglob("*.json"))
ended = {"read": 0, "refused": 0}
for number in range(num):
    path = files[number % len(files)]
    before = path.read_bytes()
    data = bytearray(before)
    for _ in range(rng.choice([1, 1, 1, 2, 8])):
        at = rng.randrange(len(data)) if rng.random() < 0.5 else rng.randrange(min(len(data), 3000))
        kind = rng.randrange(5)
        if kind == 0:
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            data[at] = rng.choice([0, 1, 0x7F, 0x80, 0xFF])
        elif kind == 2:
            data[at : at + 8] = rng.choice([-1, 0, 2**63 - 1, 1 << 32, 1 << 40]).to_bytes(8, "little", signed=True)
        elif kind == 3:
            del data[at : at + rng.randrange(1, 64)]
        else:
            data[at:at] = data[at : at + rng.randrange(1, 64)]
        if not data:
            break
    path.write_bytes(data)
    print(number, path.name, flush=True)
    try:
        for rank in read_trial(trial).ranks:
            rank.digests, rank.samples, rank.events
        ended["read"] += 1
    except TraceError:
        ended["refused"] += 1
    path.write_bytes(before)
print("ended", ended["read"], ended["refused"])
"""


@pytest.mark.parametrize("seed", [1, 2])
def test_no_corrupt_byte_crashes_the_reader(tmp_path: Path, seed: int) -> None:
    trial = new_trial(tmp_path / "trial")
    write_rank(trial / "rank-00000")
    command = [sys.executable, "-c", FUZZ, str(trial), str(seed), "400"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, f"{done.stdout[-100:]}\n{done.stderr[-2000:]}"
    _, num_read, num_refused = done.stdout.splitlines()[-1].split()
    assert int(num_read) > 20
    assert int(num_refused) > 100


def write_stream(path: Path, table: pa.Table, **options: Any) -> Path:
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema, **options) as writer:
        writer.write_table(table)
    return path


def events(**changes: Any) -> pa.Table:
    row = {"seq": 1, "time_ns": 0, "step": 0, "kind": "metric", "name": "n", "value": 1.0, "data": ""} | changes
    return pa.Table.from_pylist([row], schema=streams.EVENTS)


def test_another_schema_version_is_refused(tmp_path: Path) -> None:
    table = events().replace_schema_metadata({"ddparity_schema": "2"})
    with pytest.raises(TraceError, match=r"schema 2; this ddparity reads 1\. Record the trial again"):
        read_stream(write_stream(tmp_path / "e.arrow", table), streams.EVENTS)
    table = events().replace_schema_metadata(None)
    with pytest.raises(TraceError, match="schema none"):
        read_stream(write_stream(tmp_path / "e.arrow", table), streams.EVENTS)


@pytest.mark.parametrize("change", ["dropped", "renamed", "retyped", "added"])
def test_other_columns_are_refused(tmp_path: Path, change: str) -> None:
    table = {
        "dropped": lambda t: t.drop_columns(["step"]),
        "renamed": lambda t: t.rename_columns({"step": "steps"}),
        "retyped": lambda t: t.set_column(2, "step", t.column("step").cast(pa.int64())),
        "added": lambda t: t.append_column("more", pa.array([1])),
    }[change](events())
    table = table.replace_schema_metadata(streams.EVENTS.metadata)
    with pytest.raises(TraceError, match="columns are not those of schema 1"):
        read_stream(write_stream(tmp_path / "e.arrow", table), streams.EVENTS)


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_compressed_buffers_are_refused_before_they_are_unpacked(tmp_path: Path, codec: str) -> None:
    table = pa.Table.from_pylist(events(data="0" * 50_000_000).to_pylist(), schema=streams.EVENTS)
    path = write_stream(tmp_path / "e.arrow", table, options=pa.ipc.IpcWriteOptions(compression=codec))
    assert path.stat().st_size < 1_000_000
    with pytest.raises(TraceError, match="compressed buffers"):
        read_stream(path, streams.EVENTS)


def test_missing_values_are_refused(tmp_path: Path) -> None:
    path = write_stream(tmp_path / "e.arrow", events(name=None))
    with pytest.raises(TraceError, match=r"corrupt batch 0 \(column name lacks values\)"):
        read_stream(path, streams.EVENTS)
    row = dict.fromkeys(streams.SAMPLES.names, 0) | {"root": "", "training": True, "ids": [1, None]}
    path = write_stream(tmp_path / "s.arrow", pa.Table.from_pylist([row], schema=streams.SAMPLES))
    with pytest.raises(TraceError, match="column ids lacks values"):
        read_stream(path, streams.SAMPLES)
    read_stream(write_stream(tmp_path / "e.arrow", events(value=None)), streams.EVENTS)


def test_strings_that_are_not_utf8_are_refused(tmp_path: Path) -> None:
    content = write_stream(tmp_path / "e.arrow", events(name="abcd")).read_bytes()
    (tmp_path / "e.arrow").write_bytes(content.replace(b"abcd", b"a\xff\xfed"))
    with pytest.raises(TraceError, match=r"corrupt batch 0 .*UTF8"):
        read_stream(tmp_path / "e.arrow", streams.EVENTS)


@pytest.mark.parametrize("content", [b"\0" * 100_000, b"ARROW1\0\0" * 9, b"PK\x03\x04 no stream", b"\xff" * 4096])
def test_other_files_are_refused_or_empty(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "e.arrow"
    path.write_bytes(content)
    with contextlib.suppress(TraceError):
        table, whole = read_stream(path, streams.EVENTS)
        assert (table.num_rows, whole) == (0, False)


def test_absurd_sizes_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "e.arrow"
    with path.open("wb") as file:
        file.truncate(1 << 40)  # sparse: it takes no room
    with pytest.raises(TraceError, match="more than the"):
        read_stream(path, streams.EVENTS)
    with pytest.raises(TraceError, match="larger than 16 MiB"):
        read_json(path, RankFacts)
    claimed = b"\xff\xff\xff\xff" + (0x7FFFFFF0).to_bytes(4, "little") + b"\0" * 64
    path.write_bytes(claimed)
    with pytest.raises(TraceError, match="not an Arrow stream"):
        read_stream(path, streams.EVENTS)


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"nowhere.arrow: cannot be read"):
        read_stream(tmp_path / "nowhere.arrow", streams.EVENTS)
    with pytest.raises(TraceError, match=r"trial.json: cannot be read \(No such file or directory\)"):
        read_trial(tmp_path)
    with pytest.raises(TraceError, match="cannot be read"):
        read_stream(tmp_path, streams.EVENTS)


def rank_with(tmp_path: Path, stream: str, row: dict[str, Any]) -> RankTrace:
    folder = write_rank(tmp_path / "rank-00000", batches=1)
    table = read_stream(folder / f"{stream}.arrow", streams.STREAMS[stream])[0].slice(0, 1).to_pylist()
    changed = pa.Table.from_pylist([table[0] | row], schema=streams.STREAMS[stream])
    write_stream(folder / f"{stream}.arrow", changed)
    return RankTrace(folder, facts())


@pytest.mark.parametrize("data", ["{", "[1]", "null", "[" * 100_000, '{"a":' * 5000, '{"a": 1e999}', "\0"])
def test_events_that_are_not_json_are_refused(tmp_path: Path, data: str) -> None:
    with pytest.raises(TraceError, match="is not JSON"):
        _ = rank_with(tmp_path, "events", {"data": data}).events


@pytest.mark.parametrize(
    ("stream", "row", "message"),
    [
        ("sites", {"site": "nonsense"}, "is none of ddparity's"),
        ("sites", {"shape": [3, -1]}, r"no tensor has the shape \[3, -1\]"),
        ("sites", {"shape": [1] * 1000}, "no tensor has the shape"),
        ("sites", {"global_shape": [1 << 60]}, "no tensor has the shape"),
        ("digests", {"site_id": 99}, "names site 99, which is not there"),
        ("digests", {"count": -1}, "negative number of elements"),
        ("digests", {"num_nan": -1}, "negative number of elements"),
    ],
)
def test_impossible_rows_are_refused(tmp_path: Path, stream: str, row: dict[str, Any], message: str) -> None:
    with pytest.raises(TraceError, match=message):
        _ = rank_with(tmp_path, stream, row).digests


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rank": 2}, "rank 2 of 2 cannot be"),
        ({"rank": -1}, "rank -1 of 2 cannot be"),
        ({"world_size": 10**9}, "rank 0 of 1000000000 cannot be"),
        ({"world_size": 0}, "rank 0 of 0 cannot be"),
        ({"rank": 1}, "holds what rank 1 recorded"),
        ({"rank": 10**30}, "of 2 cannot be"),
        ({"rank": "0"}, "not a file that ddparity wrote"),
        ({"status": "ASLEEP"}, "not a file that ddparity wrote"),
        ({"schema": 2}, "schema 2; this ddparity reads 1"),
    ],
)
def test_impossible_ranks_are_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    trial = new_trial(tmp_path / "trial")
    RankWriter(trial / "rank-00000", facts(0, 2)).close()
    path = trial / "rank-00000" / "rank.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(TraceError, match=message):
        read_trial(trial)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"id": "\xff"}', b"[" * 100_000, b'{"settings":' * 5000])
def test_json_that_ddparity_did_not_write_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "trial.json"
    path.write_bytes(content)
    with pytest.raises(TraceError, match=r"trial.json: not a file that ddparity wrote"):
        read_trial(tmp_path)


def test_reading_is_fast(tmp_path: Path) -> None:
    """Two trials of a few thousand digests are to be compared in a second, start-up included."""
    writer = RankWriter(tmp_path / "rank-00000", facts())
    digest = digest_of(array(1))
    for i in range(3000):
        writer.digest(digest, site=Site.PARAMETER, name=f"p{i % 500}", step=i // 500)
    writer.close()
    start = time.perf_counter()
    assert len(RankTrace(writer.folder, facts()).digests) == 3000
    assert time.perf_counter() - start < 1.0


def test_a_stream_without_its_schema_is_refused(written: Path, tmp_path: Path) -> None:
    content = (written / "rank-00000" / "events.arrow").read_bytes()
    path = tmp_path / "e.arrow"
    path.write_bytes(content[len(streams.EVENTS.serialize()) :])
    with pytest.raises(TraceError, match="it starts with a message of type record batch"):
        read_stream(path, streams.EVENTS)
    path.write_bytes(content + content)
    table, whole = read_stream(path, streams.EVENTS)
    assert (table.num_rows, whole) == (3, True)
