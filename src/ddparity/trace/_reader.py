"""Reading a trial. Every file is untrusted: sizes are bounded, columns checked, nothing is executed."""

import re
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
import pyarrow as pa

from ddparity._errors import TraceError
from ddparity.digest import Digest

from ._ipc import read_stream
from ._schema import SCHEMA_VERSION, SKETCH_SIZE, RankFacts, Site, TrialFacts
from ._streams import STREAMS

MAX_JSON_BYTES = 16 << 20
MAX_RANKS = 65_536
MAX_DIMS = 64
MAX_WORKER_FILES = 65_536
MAX_DIM = 1 << 48
_SITES = frozenset(Site)
_RANK_FOLDER = re.compile(r"rank-(\d{5,9})\Z")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SiteRow:
    """What was digested: see ``_streams.SITES``."""

    site: str
    name: str
    part: str
    module: str
    dtype: str
    shape: tuple[int, ...]
    offsets: tuple[int, ...] | None
    global_shape: tuple[int, ...] | None
    placement: str


@dataclass(frozen=True, slots=True)
class DigestRow:
    """One digest and where it was taken: see ``_streams.DIGESTS``."""

    seq: int
    site: SiteRow
    step: int
    batch: int
    occurrence: int
    backward: int
    rows: int
    flags: int
    digest: Digest


@dataclass(frozen=True, slots=True)
class SampleRow:
    """One batch that entered a root module."""

    seq: int
    step: int
    batch: int
    root: str
    training: bool
    start: int
    stop: int
    total: int
    ids: np.ndarray


@dataclass(frozen=True)
class Loads:
    """All batches that loaders delivered, as columns: see ``_streams.LOADS``.

    Attributes:
        time_ns, step, loader, epoch, number, wait_ns, labels: One value a batch, (n,) int64.
        content: Of the first sample of each batch, (n,) uint64.
        offsets: Where the samples of each batch begin in ``ids``, (n + 1,) int64.
        ids: Samples of all batches one after the other, uint64.
    """

    time_ns: np.ndarray
    step: np.ndarray
    loader: np.ndarray
    epoch: np.ndarray
    number: np.ndarray
    wait_ns: np.ndarray
    labels: np.ndarray
    content: np.ndarray
    offsets: np.ndarray
    ids: np.ndarray


class WorkerStreams(msgspec.Struct, kw_only=True):
    """Which random generators the first fetch of an epoch drew from in one loader worker (-1: no worker).

    Attributes:
        first: Digest of the indices of the first fetch; empty where the dataset chooses its samples itself.
        streams: Name of a generator -> digest of its state before and after.
    """

    loader: int
    epoch: int
    worker: int
    first: str = ""
    streams: dict[str, tuple[str, str]] = {}


@dataclass(frozen=True, slots=True)
class EventRow:
    """One event; ``data`` is what its JSON says."""

    seq: int
    time_ns: int
    step: int
    kind: str
    name: str
    value: float | None
    data: dict[str, Any]


@dataclass
class RankTrace:
    """What one rank recorded."""

    folder: Path
    facts: RankFacts
    truncated: list[str] = field(default_factory=list)
    """Streams that end in the middle of a batch or without their end mark."""

    @cached_property
    def digests(self) -> list[DigestRow]:
        """All digests in the order in which they were taken."""
        sites = {row["site_id"]: _site(row, self.folder) for row in self._table("sites").to_pylist()}
        return _digest_rows(self._table("digests"), sites, self.folder)

    @cached_property
    def samples(self) -> list[SampleRow]:
        """All batches in order."""
        table = self._table("samples")
        ids = table.column("ids").combine_chunks() if table.num_rows else []
        names = ("seq", "step", "batch", "root", "training", "start", "stop", "total")
        columns = [table.column(name).to_pylist() for name in names]
        return [
            SampleRow(*row, ids=np.asarray(ids[i].values, dtype=np.uint64))
            for i, row in enumerate(zip(*columns, strict=True))
        ]

    @cached_property
    def loads(self) -> Loads:
        """All batches that loaders delivered, in order; none in a trace of an older version."""
        if not (self.folder / "loads.arrow").exists():
            table = STREAMS["loads"].empty_table()
        else:
            table = self._table("loads")
        return _loads(table)

    @cached_property
    def worker_streams(self) -> list[WorkerStreams]:
        """What loader workers said of their generators."""
        folder = self.folder.parent / "workers" / self.folder.name
        found: list[WorkerStreams] = []
        for path in sorted(folder.glob("*.jsonl"))[:MAX_WORKER_FILES] if folder.is_dir() else ():
            found += _worker_streams(path)
        return found

    @cached_property
    def events(self) -> list[EventRow]:
        """All events in order."""
        return [_event(row, self.folder) for row in self._table("events").to_pylist()]

    def _table(self, stream: str) -> pa.Table:
        table, whole = read_stream(self.folder / f"{stream}.arrow", STREAMS[stream])
        if not whole:
            self.truncated.append(stream)
        return table


@dataclass
class Trial:
    """A trial on disk."""

    folder: Path
    facts: TrialFacts
    ranks: list[RankTrace]

    @property
    def world_size(self) -> int:
        """Number of ranks that should be there, as the ranks themselves say."""
        return max((rank.facts.world_size for rank in self.ranks), default=0)

    @property
    def missing_ranks(self) -> list[int]:
        """Ranks that left no folder."""
        seen = {rank.facts.rank for rank in self.ranks}
        return [rank for rank in range(self.world_size) if rank not in seen]


def read_trial(folder: Path) -> Trial:
    """Read a trial's facts and those of its ranks; streams are read on first use.

    Raises:
        TraceError: If a file is missing, corrupt, of another schema or absurdly large. A rank that was killed before
            it had written ``rank.json`` is not an error; it is a missing rank.
    """
    facts = read_json(folder / "trial.json", TrialFacts)
    found = sorted((int(m[1]), path) for path in folder.iterdir() if (m := _RANK_FOLDER.match(path.name)))
    if len(found) > MAX_RANKS:
        raise TraceError(f"{folder}: {len(found)} rank folders, more than the {MAX_RANKS} that are read.")
    return Trial(folder, facts, [_rank(path, number) for number, path in found if (path / "rank.json").exists()])


def _rank(folder: Path, number: int) -> RankTrace:
    facts = read_json(folder / "rank.json", RankFacts)
    if not 0 <= facts.rank < facts.world_size <= MAX_RANKS:
        raise TraceError(f"{folder}: rank {facts.rank} of {facts.world_size} cannot be. Record the trial again.")
    if facts.rank != number:
        raise TraceError(f"{folder}: holds what rank {facts.rank} recorded. Record the trial again.")
    return RankTrace(folder, facts)


def read_json(path: Path, kind: type[T]) -> T:
    """Read a JSON file into a struct.

    Raises:
        TraceError: If the file is missing, too large, no JSON, of another schema or of other types.
    """
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            raise TraceError(f"{path}: larger than {MAX_JSON_BYTES >> 20} MiB; it is not what ddparity writes.")
        value = msgspec.json.decode(path.read_bytes(), type=kind)
    except OSError as error:
        raise TraceError(f"{path}: cannot be read ({error.strerror}). Record the trial again.") from error
    except (msgspec.MsgspecError, RecursionError) as error:
        raise TraceError(f"{path}: not a file that ddparity wrote ({error}). Record the trial again.") from error
    schema = getattr(value, "schema", SCHEMA_VERSION)
    if schema != SCHEMA_VERSION:
        raise TraceError(f"{path}: schema {schema}; this ddparity reads {SCHEMA_VERSION}. Record the trial again.")
    return value


def _site(row: dict[str, Any], folder: Path) -> SiteRow:
    shape, offsets, global_shape = (_dims(row[name], folder) for name in ("shape", "offsets", "global_shape"))
    if row["site"] not in _SITES or shape is None:
        raise TraceError(f"{folder}: site {row['site_id']} ({row['site']!r}) is none of ddparity's. Record again.")
    return SiteRow(
        site=row["site"],
        name=row["name"],
        part=row["part"],
        module=row["module"],
        dtype=row["dtype"],
        shape=shape,
        offsets=offsets,
        global_shape=global_shape,
        placement=row["placement"],
    )


def _dims(values: list[int] | None, folder: Path) -> tuple[int, ...] | None:
    if values is not None and (len(values) > MAX_DIMS or any(not 0 <= value <= MAX_DIM for value in values)):
        raise TraceError(f"{folder}: no tensor has the shape {str(values)[:80]}. Record the trial again.")
    return None if values is None else tuple(values)


def _loads(table: pa.Table) -> Loads:
    names = ("time_ns", "step", "loader", "epoch", "number", "wait_ns", "labels")
    columns = {name: table.column(name).to_numpy().astype(np.int64) for name in names}
    columns["content"] = table.column("content").to_numpy()
    offsets, ids = [np.zeros(1, dtype=np.int64)], [np.zeros(0, dtype=np.uint64)]
    for chunk in table.column("ids").chunks:
        ends = chunk.offsets.to_numpy().astype(np.int64)
        ids.append(chunk.values.to_numpy()[ends[0] : ends[-1]])
        offsets.append(ends[1:] - ends[0] + offsets[-1][-1])
    return Loads(**columns, offsets=np.concatenate(offsets), ids=np.concatenate(ids))


def _worker_streams(path: Path) -> list[WorkerStreams]:
    """Read the lines of one worker; the last may be cut short by its end."""
    try:
        if path.is_symlink() or path.stat().st_size > MAX_JSON_BYTES:
            raise TraceError(f"{path}: not a file that ddparity wrote. Record the trial again.")
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise TraceError(f"{path}: cannot be read ({error.strerror}). Record the trial again.") from error
    found = []
    for number, line in enumerate(lines, start=1):
        try:
            found.append(msgspec.json.decode(line, type=WorkerStreams))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            if number < len(lines):
                raise TraceError(f"{path}, line {number}: {error}. Record the trial again.") from error
    return found


_DIGEST_FIELDS = ("count", "num_nan", "num_inf", "sum", "sum_abs", "sum_sq", "minimum", "maximum", "hash")


def _digest_rows(table: pa.Table, sites: dict[int, SiteRow], folder: Path) -> list[DigestRow]:
    sketches = _sketches(table)
    heads = [table.column(name).to_pylist() for name in table.column_names[:8]]
    values = [table.column(name).to_pylist() for name in _DIGEST_FIELDS]
    rows = []
    for i, (seq, site_id, step, batch, occurrence, backward, num_rows, flags) in enumerate(zip(*heads, strict=True)):
        site = sites.get(site_id)
        if site is None:
            raise TraceError(f"{folder}: digest {seq} names site {site_id}, which is not there. Record again.")
        stats = dict(zip(_DIGEST_FIELDS, (column[i] for column in values), strict=True))
        if min(stats["count"], stats["num_nan"], stats["num_inf"]) < 0:
            raise TraceError(f"{folder}: digest {seq} counts a negative number of elements. Record again.")
        digest = Digest(shape=site.shape, dtype=site.dtype, sketch=sketches[i], **stats)
        rows.append(DigestRow(seq, site, step, batch, occurrence, backward, num_rows, flags, digest))
    return rows


def _sketches(table: pa.Table) -> np.ndarray:
    chunks = [
        np.frombuffer(chunk.buffers()[1], dtype=np.float64)[
            chunk.offset * SKETCH_SIZE : (chunk.offset + len(chunk)) * SKETCH_SIZE
        ]
        for chunk in table.column("sketch").chunks
    ]
    return np.concatenate(chunks).reshape(-1, SKETCH_SIZE) if chunks else np.zeros((0, SKETCH_SIZE))


def _event(row: dict[str, Any], folder: Path) -> EventRow:
    try:
        data = msgspec.json.decode(row["data"], type=dict[str, Any]) if row["data"] else {}
    except (msgspec.MsgspecError, RecursionError) as error:
        raise TraceError(f"{folder}: event {row['seq']} is not JSON ({error}). Record the trial again.") from error
    return EventRow(row["seq"], row["time_ns"], row["step"], row["kind"], row["name"], row["value"], data)
