"""The five Arrow streams of a rank: names and columns. A change of a column is a change of ``SCHEMA_VERSION``."""

import pyarrow as pa

from ._schema import SCHEMA_VERSION, SKETCH_SIZE

_META = {b"ddparity_schema": str(SCHEMA_VERSION).encode()}
_MAY_BE_NULL = {"offsets", "global_shape", "hash", "value"}


def _schema(*columns: tuple[str, pa.DataType]) -> pa.Schema:
    """Make a schema whose columns always have a value, but for those that say nothing where there is nothing."""
    return pa.schema([pa.field(name, kind, nullable=name in _MAY_BE_NULL) for name, kind in columns], metadata=_META)


def _list(kind: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("item", kind, nullable=False))


SITES = _schema(
    ("site_id", pa.int32()),
    ("site", pa.string()),
    ("name", pa.string()),
    ("part", pa.string()),
    ("module", pa.string()),
    ("dtype", pa.string()),
    ("shape", _list(pa.int64())),
    ("offsets", _list(pa.int64())),
    ("global_shape", _list(pa.int64())),
    ("placement", pa.string()),
)
"""What is digested: one row for each combination of site, name, part, shape and placement."""

DIGESTS = _schema(
    ("seq", pa.int64()),
    ("site_id", pa.int32()),
    ("step", pa.int32()),
    ("batch", pa.int32()),
    ("occurrence", pa.int32()),
    ("backward", pa.int32()),
    ("rows", pa.int32()),
    ("flags", pa.int32()),
    ("count", pa.int64()),
    ("num_nan", pa.int64()),
    ("num_inf", pa.int64()),
    ("sum", pa.float64()),
    ("sum_abs", pa.float64()),
    ("sum_sq", pa.float64()),
    ("minimum", pa.float64()),
    ("maximum", pa.float64()),
    ("hash", pa.uint64()),
    ("sketch", pa.binary(SKETCH_SIZE * 8)),
)
"""One row a digest. ``rows``: rows of dimension 0 a sample if keyed by sample, 0 if keyed by position."""

SAMPLES = _schema(
    ("seq", pa.int64()),
    ("time_ns", pa.int64()),
    ("step", pa.int32()),
    ("batch", pa.int32()),
    ("root", pa.string()),
    ("training", pa.bool_()),
    ("start", pa.int32()),
    ("stop", pa.int32()),
    ("total", pa.int32()),
    ("ids", _list(pa.uint64())),
)
"""One row for each batch that entered a root module: identities of its samples, and which slice of each it was
along the sequence (``start:stop`` of ``total``; all 0 for whole samples)."""

LOADS = _schema(
    ("time_ns", pa.int64()),
    ("step", pa.int32()),
    ("loader", pa.int32()),
    ("epoch", pa.int32()),
    ("number", pa.int32()),
    ("wait_ns", pa.int64()),
    ("labels", pa.int64()),
    ("content", pa.uint64()),
    ("ids", _list(pa.uint64())),
)
"""One row for each batch that a DataLoader delivered: how long training waited for it, how many labels count (-1: not
known), the content of its first sample (0: not taken), and its samples, by index where a dataset has indices, else by
content."""

SEQUENCES = _schema(
    ("step", pa.int32()),
    ("batch", pa.int32()),
    ("length", pa.int32()),
    ("ids", _list(pa.uint64())),
    ("positions", _list(pa.uint64())),
)
"""A control's samples position by position: identities (rows,) and a hash of each position (rows * length,). It
stands in the trial's ``private`` folder and never leaves the machine."""

EVENTS = _schema(
    ("seq", pa.int64()),
    ("time_ns", pa.int64()),
    ("step", pa.int32()),
    ("kind", pa.string()),
    ("name", pa.string()),
    ("value", pa.float64()),
    ("data", pa.string()),
)
"""Everything that is not a tensor: losses, learning rates, clipping, errors."""

STREAMS = {"sites": SITES, "digests": DIGESTS, "samples": SAMPLES, "loads": LOADS, "events": EVENTS}

FLAG_RANDOM = 1
"""The module drew random numbers while it computed this activation."""
FLAG_TRAINING = 2
"""The module was in training mode."""
FLAG_GRAD = 4
"""Gradients were enabled when this activation was computed."""
