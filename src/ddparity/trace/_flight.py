"""Reading dumps of PyTorch's flight recorder: what a rank asked of the others, as torch itself wrote it down.

JSON (``_dump_fr_trace_json``) or pickle (``_dump_fr_trace``, ``TORCH_FR_DUMP_TEMP_FILE``), a file a rank, whose name
ends in the rank. Pickles also hold the stacks; they are read without being run. The bytes are untrusted.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from ddparity._errors import TraceError, UsageError

from ._plain_pickle import MAX_BYTES, plain_pickle
from ._ring_format import CallFlag, Kind
from ._rings import Call

MAX_DUMPS = 65_536
_MAX_ENTRIES = 100_000
_MAX_FRAMES = 12
_MAX_TEXT = 500
_RANK = re.compile(r"(\d+)$")
_NOT_USERS = re.compile(r"/torch/|/ddparity/capture/|^<")
_KINDS = (
    ("barrier", Kind.BARRIER),
    ("reduce_scatter", Kind.REDUCE_SCATTER),
    ("all_reduce", Kind.ALL_REDUCE),
    ("allreduce", Kind.ALL_REDUCE),
    ("all_gather", Kind.ALL_GATHER),
    ("allgather", Kind.ALL_GATHER),
    ("all_to_all", Kind.ALL_TO_ALL),
    ("alltoall", Kind.ALL_TO_ALL),
    ("broadcast", Kind.BROADCAST),
    ("gather", Kind.GATHER),
    ("scatter", Kind.SCATTER),
    ("reduce", Kind.REDUCE),
)
"""What a profiling name holds, the longer before what is a part of it."""
_DTYPES = {
    "Float": "float32", "Double": "float64", "Half": "float16", "BFloat16": "bfloat16", "Long": "int64", "Int": "int32",
    "Short": "int16", "Char": "int8", "Byte": "uint8", "Bool": "bool",
}  # fmt: skip


@dataclass(frozen=True)
class FlightDump:
    """What one rank's flight recorder held.

    Attributes:
        path: The file.
        rank: The rank, by the name of the file.
        calls: Its collectives, in order; ``group`` is the name of the group.
        ranks: The ranks of each group, where the dump tells them; with gloo it does not.
        written: When the dump was written, in nanoseconds since the epoch.
    """

    path: Path
    rank: int
    calls: list[Call]
    ranks: dict[str, list[int]]
    written: int

    @property
    def has_stacks(self) -> bool:
        """Whether the calls have stacks: JSON has none."""
        return any(call.stack for call in self.calls)


def read_flight(path: Path) -> list[FlightDump]:
    """Read the dumps of a folder, or one, by rank; of a rank with several JSON is taken.

    Raises:
        UsageError: If there is none.
        TraceError: If a file is no dump, is damaged, or there are too many.
    """
    files = sorted(p for p in path.iterdir() if p.is_file()) if path.is_dir() else [path]
    named = [(int(match[1]), file) for file in files if (match := _RANK.search(file.name.removesuffix(".json")))]
    if not named or not path.exists():
        raise UsageError(
            f"{path}: no dump of a flight recorder. Give a folder of files whose names end in the rank, as rank_0, "
            "rank_1.json; NCCL writes them to TORCH_FR_DUMP_TEMP_FILE."
        )
    if len(named) > MAX_DUMPS:
        raise TraceError(f"{path}: {len(named)} dumps, more than the {MAX_DUMPS} that are read.")
    chosen: dict[int, Path] = {}
    for rank, file in named:
        if rank not in chosen or file.suffix == ".json":
            chosen[rank] = file
    return [_read(rank, file) for rank, file in sorted(chosen.items())]


def _read(rank: int, path: Path) -> FlightDump:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        written = path.stat().st_mtime_ns
    except OSError as error:
        raise TraceError(f"{path}: cannot be read ({error.strerror}).") from error
    if len(data) > MAX_BYTES:
        raise TraceError(f"{path}: larger than the {MAX_BYTES} bytes that are read of a dump.")
    try:
        document = msgspec.json.decode(data) if data[:1] == b"{" else plain_pickle(data)
        entries = document["entries"]
        if not isinstance(entries, list):
            raise TypeError("entries")
        calls = [call for entry in entries[:_MAX_ENTRIES] if (call := _call(entry)) is not None]
        ranks = _ranks(document.get("pg_config"))
    except TraceError as error:
        raise TraceError(f"{path}: {error}") from error
    except Exception as error:  # whatever a foreign document makes of the reader
        raise TraceError(f"{path}: not a dump of the flight recorder of torch ({type(error).__name__}).") from error
    return FlightDump(path, rank, calls, ranks, written)


def _call(entry: dict[str, Any]) -> Call | None:
    """Return one entry as a call; None for transfers, and for what is not known."""
    what = str(entry["profiling_name"]).partition(":")[2].lower()
    kind = next((kind for text, kind in _KINDS if text in what), None)
    if kind is None or entry.get("is_p2p"):
        return None
    sizes = [[int(n) for n in size] for size in entry["input_sizes"]]
    numel = sum(_product(size) for size in sizes)
    completed = entry.get("time_discovered_completed_ns")
    return Call(
        serial=int(entry["record_id"]) + 1,
        entered=int(entry["time_created_ns"]),
        launched=0,
        waited=0,
        done=int(completed or 0) or (1 if entry.get("state") == "completed" else 0),
        kind=kind,
        flags=CallFlag(0),
        group=_name(entry["process_group"]),
        seq=int(entry["collective_seq_id"]),
        step=-1,
        dtype="+".join(dict.fromkeys(_DTYPES.get(str(d), str(d).lower()) for d in entry.get("input_dtypes", ()))),
        reduce_op="",
        root=-1,
        tag=0,
        numel=numel,
        num_bytes=0,
        shape=";".join("x".join(map(str, size)) or "scalar" for size in sizes)[:2000],
        layout="",
        name="",
        stack=_stack(entry.get("frames", ())),
        origin="",
        num_tensors=len(sizes),
        argument="",
    )


def _product(size: list[int]) -> int:
    found = 1
    for n in size:
        found *= n
    return found


def _name(told: Any) -> str:
    """Return the name of a group, alike on all its ranks; the default one is ``world``, as in a ring."""
    name, about = str(told[0])[:_MAX_TEXT], str(told[1])[:_MAX_TEXT]
    return "world" if about == "default_pg" else f"group {name}"


def _stack(frames: Any) -> tuple[str, ...]:
    own = [frame for frame in frames if not _NOT_USERS.search(str(frame["filename"]))]
    return tuple(
        f"{str(f['filename'])[:_MAX_TEXT]}:{int(f['line'])} in {str(f['name'])[:_MAX_TEXT]}" for f in own[:_MAX_FRAMES]
    )


def _ranks(config: Any) -> dict[str, list[int]]:
    """Return the ranks of the groups whose name and ranks are there: with gloo neither is."""
    found = {}
    for name, told in config.items() if isinstance(config, dict) else ():
        ranks = [int(rank) for rank in re.findall(r"\d+", str(told.get("ranks", "")))][:MAX_DUMPS]
        if name and ranks:
            found[_name((name, told.get("desc", "")))] = ranks
    return found
