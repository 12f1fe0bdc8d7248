"""The parts of a trial as a bundle holds them: which files, in which form, and why each may leave the machine."""

import io
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa

from ddparity.bundle._scrub import Scrubber
from ddparity.bundle._veil import Veil
from ddparity.trace import RankTrace, Trial, read_stream
from ddparity.trace import _ring_format as ring
from ddparity.trace._rings import _strings
from ddparity.trace._streams import DIGESTS, STREAMS

INDEXED = pa.schema(
    [pa.field("sketch", pa.int64(), nullable=False) if field.name == "sketch" else field for field in DIGESTS],
    metadata=DIGESTS.metadata,
)
"""Digests with the number of a sketch in its place."""
SKETCHES = "sketches.f64"
_TEXT_COLUMNS = {"name", "module", "root", "data", "part"}
WHY = {
    "trial.json": "command, versions, allow-listed environment; names, places and secrets replaced",
    "rank.json": "versions, devices, seeds, settings, error types, stacks without locals; names and places replaced",
    "sites.arrow": "names, shapes, dtypes of what was digested",
    "digests.arrow": "counts, sums and extremes of tensors; hashes and sketches keyed with a secret thrown away",
    "samples.arrow": "identities of samples, keyed with a secret thrown away",
    "loads.arrow": "positions of samples in their dataset, or keyed identities; times",
    "events.arrow": "losses, metrics, learning rates, settings; names and places replaced",
    "ring": "calls of collectives: operation, shape, dtype, place in the code; names and places replaced",
    "workers": "digests of the states of random generators",
    SKETCHES: "sketches turned by secret matrices: distances stay, values are gone; equal ones stand once",
}


def parts_of(trial: Trial, folder: str, scrub: Scrubber, veil: Veil) -> Iterator[tuple[str, bytes]]:
    """Yield name in the archive and content of everything of a trial that may leave the machine."""
    facts = msgspec.to_builtins(trial.facts)
    yield f"{folder}/trial.json", _json(scrub.value(facts))
    for rank in trial.ranks:
        own = f"{folder}/{rank.folder.name}"
        told = scrub.value(msgspec.to_builtins(rank.facts)) | {"hostname": scrub.host(rank.facts.hostname)}
        yield f"{own}/rank.json", _json(told)
        for stream in STREAMS:
            if (rank.folder / f"{stream}.arrow").is_file():
                yield f"{own}/{stream}.arrow", _stream(rank, stream, scrub, veil)
    for path in sorted((trial.folder / ring.FOLDER).glob("*.ring")):
        yield f"{folder}/{ring.FOLDER}/{path.name}", scrubbed_ring(path.read_bytes(), scrub)
    for path in sorted((trial.folder / "workers").glob("rank-*/*.jsonl")):
        yield f"{folder}/workers/{path.parent.name}/{path.name}", scrub.text(path.read_text()).encode()


def by_place(sketches: bytes) -> bytes:
    """Return numbers of eight bytes with all first bytes first: signs and exponents stand together and pack better."""
    return np.frombuffer(sketches, dtype=np.uint8).reshape(-1, 8).T.tobytes()


def by_number(content: bytes) -> bytes:
    """Undo :func:`by_place`; the length is a multiple of eight."""
    return np.frombuffer(content, dtype=np.uint8).reshape(8, -1).T.tobytes()


def why(name: str) -> str:
    """Return in words why an entry may leave the machine."""
    last = name.rpartition("/")[2]
    if last.endswith(".ring"):
        return WHY["ring"]
    return WHY["workers"] if "/workers/" in name else WHY.get(last, "the judge's own words and numbers")


def _json(value: object) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=1)


def _stream(rank: RankTrace, stream: str, scrub: Scrubber, veil: Veil) -> bytes:
    table, whole = read_stream(rank.folder / f"{stream}.arrow", STREAMS[stream])
    schema = STREAMS[stream]
    columns = {name: table.column(name) for name in table.column_names}
    for name in _TEXT_COLUMNS & set(columns):
        change = _event_data(scrub) if name == "data" else scrub.text
        columns[name] = pa.array([change(text) for text in columns[name].to_pylist()], pa.string())
    if "ids" in columns:
        columns["ids"] = _lists(columns["ids"], veil)
    if "content" in columns:
        columns["content"] = pa.array(veil.ids(columns["content"].to_numpy()), pa.uint64())
    if stream == "digests":
        schema = INDEXED
        columns |= _digests(rank, columns, veil)
    arrays = [columns[field.name] for field in schema]
    return _written(pa.Table.from_arrays(arrays, schema=schema), schema, whole=whole)


def _event_data(scrub: Scrubber) -> Callable[[str], str]:
    def change(text: str) -> str:
        return msgspec.json.encode(scrub.value(msgspec.json.decode(text))).decode() if text else text

    return change


def _lists(column: pa.ChunkedArray, veil: Veil) -> pa.Array:
    kind = pa.list_(pa.field("item", pa.uint64(), nullable=False))
    found = [veil.ids(np.asarray(ids, dtype=np.uint64)) for ids in column.to_pylist()]
    return pa.array([ids.tolist() for ids in found], kind)


def _digests(rank: RankTrace, columns: dict[str, pa.ChunkedArray], veil: Veil) -> dict[str, pa.Array]:
    names = {row["site_id"]: row["name"] for row in rank._table("sites").to_pylist()}
    owners = [names.get(site, "") for site in columns["site_id"].to_pylist()]
    hashes = zip(owners, columns["hash"].to_pylist(), strict=True)
    sketches = zip(owners, columns["sketch"].to_pylist(), strict=True)
    return {
        "hash": pa.array([veil.hash(*pair) for pair in hashes], pa.uint64()),
        "sketch": pa.array([veil.sketch(*pair) for pair in sketches], pa.int64()),
    }


def _written(table: pa.Table, schema: pa.Schema, *, whole: bool) -> bytes:
    buffer = io.BytesIO()
    writer = pa.ipc.new_stream(buffer, schema)
    writer.write_table(table)
    if not whole:  # it stays one that was cut short
        return buffer.getvalue()
    writer.close()
    return buffer.getvalue()


def scrubbed_ring(data: bytes, scrub: Scrubber) -> bytes:
    """Return a ring with every string and the last position scrubbed; strings keep their numbers."""
    found = bytearray(data)
    (used,) = struct.unpack_from("<q", data, ring.Field.STRING_BYTES)
    texts = [_scrubbed_json(text, scrub).encode() for text in _strings(data, used)[1:]]
    packed = b"".join(struct.pack("<I", len(text)) + text for text in texts)[: ring.STRINGS_SIZE]
    found[ring.STRINGS_AT : ring.STRINGS_AT + ring.STRINGS_SIZE] = packed.ljust(ring.STRINGS_SIZE, b"\0")
    struct.pack_into("<q", found, ring.Field.STRING_BYTES, len(packed))
    (length,) = struct.unpack_from("<H", data, ring.POSITION_AT)
    start = ring.POSITION_AT + 2
    position = scrub.text(data[start : start + length].decode(errors="replace")).encode()[: ring.POSITION_SIZE]
    found[start : start + ring.POSITION_SIZE] = position.ljust(ring.POSITION_SIZE, b"\0")
    struct.pack_into("<H", found, ring.POSITION_AT, len(position))
    return bytes(found)


def _scrubbed_json(text: str, scrub: Scrubber) -> str:
    if text.startswith("{"):
        try:
            return msgspec.json.encode(scrub.value(msgspec.json.decode(text))).decode()
        except msgspec.MsgspecError:
            pass
    return "\n".join(scrub.text(line) for line in text.split("\n"))


def restored_digests(data: bytes, sketches: np.ndarray, path: Path) -> None:
    """Write a stream of digests with the sketches back in their place.

    Raises:
        ValueError: If a row names a sketch that is not there.
    """
    indexed = path.with_suffix(".indexed")
    indexed.write_bytes(data)
    table, whole = read_stream(indexed, INDEXED)
    numbers = table.column("sketch").to_numpy()
    if len(numbers) and not (numbers.min() >= 0 and numbers.max() < len(sketches)):
        raise ValueError("a digest names a sketch that is not there")
    raw = [sketches[number].tobytes() for number in numbers]
    columns = [pa.array(raw, field.type) if field.name == "sketch" else table.column(field.name) for field in DIGESTS]
    path.write_bytes(_written(pa.Table.from_arrays(columns, schema=DIGESTS), DIGESTS, whole=whole))
    indexed.unlink()
