"""Reading one Arrow stream that may be truncated, corrupt or made by somebody else.

The file is mapped and read message by message, so that nothing is allocated by what the file claims: buffers are
slices of the map, compressed ones are refused. Whatever the bytes are, the outcome is a table or a ``TraceError``.
"""

import struct
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from ddparity._errors import TraceError

from ._schema import SCHEMA_VERSION

MAX_STREAM_BYTES = 16 << 30
_END_MARK = b"\xff\xff\xff\xff\x00\x00\x00\x00"
_FIELD_HEADER = 2  # of the flatbuffer table Message: version, header_type, header, bodyLength
_FIELD_COMPRESSION = 3  # of the flatbuffer table RecordBatch: length, nodes, buffers, compression
_CORRUPT = (pa.ArrowException, OSError, ValueError, struct.error)


def read_stream(path: Path, schema: pa.Schema) -> tuple[pa.Table, bool]:
    """Read an Arrow stream up to its last full batch; also say whether it ended with its end mark.

    Raises:
        TraceError: If the file is missing, too large, of another schema or corrupt within a batch.
    """
    try:
        size = path.stat().st_size
        if size > MAX_STREAM_BYTES:
            raise TraceError(f"{path}: {size} bytes, more than the {MAX_STREAM_BYTES} that are read.")
        if size == 0:
            return schema.empty_table(), False
        messages = pa.ipc.MessageReader.open_stream(pa.memory_map(str(path)))
    except OSError as error:
        raise TraceError(f"{path}: cannot be read ({error}). Record the trial again.") from error
    if not _check_schema(messages, schema, path):
        return schema.empty_table(), False
    batches = list(_batches(messages, schema, path))
    return pa.Table.from_batches(batches, schema=schema), _ends_with_mark(path, size)


def _check_schema(messages: pa.ipc.MessageReader, schema: pa.Schema, path: Path) -> bool:
    """Read the schema; return False if the file ends within it."""
    try:
        first = messages.read_next_message()
        if first.type != "schema":  # pyarrow 26 ends in a segmentation fault where it reads another as a schema
            raise ValueError(f"it starts with a message of type {first.type}")
        found = pa.ipc.read_schema(first)
    except StopIteration:
        return False
    except _CORRUPT as error:
        raise TraceError(f"{path}: not an Arrow stream ({error}). Record the trial again.") from error
    version = (found.metadata or {}).get(b"ddparity_schema", b"none").decode(errors="replace")
    if version != str(SCHEMA_VERSION):
        raise TraceError(f"{path}: schema {version}; this ddparity reads {SCHEMA_VERSION}. Record the trial again.")
    if not found.equals(schema):
        raise TraceError(f"{path}: columns are not those of schema {SCHEMA_VERSION}. Record the trial again.")
    return True


def _batches(messages: pa.ipc.MessageReader, schema: pa.Schema, path: Path) -> Iterator[pa.RecordBatch]:
    """Yield the batches that are there in full; what follows a message that ends too early is not there."""
    for number in range(1 << 62):
        try:
            message = messages.read_next_message()
        except (StopIteration, *_CORRUPT):
            return
        try:
            yield _batch(message, schema)
        except _CORRUPT as error:
            raise TraceError(f"{path}: corrupt batch {number} ({error}). Record the trial again.") from error


def _batch(message: pa.ipc.Message, schema: pa.Schema) -> pa.RecordBatch:
    if message.type != "record batch":
        raise ValueError(f"a message of type {message.type} among the batches")
    if _is_compressed(message.metadata.to_pybytes()):
        raise ValueError("compressed buffers, which ddparity does not write")
    batch = pa.ipc.read_record_batch(message, schema)
    batch.validate(full=True)
    for field, column in zip(schema, batch.columns, strict=True):
        items = column.values if pa.types.is_list(field.type) else column  # flatten() would load pyarrow.compute
        if (column.null_count and not field.nullable) or (items is not column and items.null_count):
            raise ValueError(f"column {field.name} lacks values")
    return batch


def _is_compressed(metadata: bytes) -> bool:
    """Whether the header of a record batch names a codec, read by hand: pyarrow decompresses without asking."""
    (message,) = struct.unpack_from("<I", metadata, 0)
    header = _field(metadata, message, _FIELD_HEADER)
    if header is None:
        raise ValueError("a batch without a header")
    (offset,) = struct.unpack_from("<I", metadata, header)
    return _field(metadata, header + offset, _FIELD_COMPRESSION) is not None


def _field(buffer: bytes, table: int, number: int) -> int | None:
    """Return where a field of a flatbuffer table stands, or None if the table lacks it."""
    (back,) = struct.unpack_from("<i", buffer, table)
    vtable = table - back
    if vtable < 0:
        raise ValueError("a header that points outside itself")
    (size,) = struct.unpack_from("<H", buffer, vtable)
    at = 4 + 2 * number
    if at + 2 > size:
        return None
    (offset,) = struct.unpack_from("<H", buffer, vtable + at)
    return table + offset if offset else None


def _ends_with_mark(path: Path, size: int) -> bool:
    with path.open("rb") as file:
        file.seek(max(0, size - len(_END_MARK)))
        return file.read() == _END_MARK
