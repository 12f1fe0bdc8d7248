"""The recorder's pen: append-only Arrow streams that stay readable up to the last flush after ``kill -9``."""

import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from ddparity.digest import Digest

from ._atomic import write_atomically
from ._schema import Event, RankFacts, Site
from ._streams import STREAMS

SiteKey = tuple[str, str, str, str, str, tuple[int, ...], tuple[int, ...] | None, tuple[int, ...] | None, str]

Row = tuple[Any, ...]

_FLUSH_AT = 4096


def _plain_number(value: Any) -> Any:
    """Return a number or an array of numpy's as Python's own; of anything else what it is, since scripts hold anything.

    A schedule that numpy computed gives learning rates that are floats and yet no ``float`` to msgspec.
    """
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return kind(value)
    return f"<{type(value).__name__}>"


class RankWriter:
    """Writes one rank's folder. Rows wait in memory until :meth:`flush`; a flush is one batch a stream.

    Args:
        folder: ``rank-00000`` and the like; created, must not exist yet.
        facts: Written to ``rank.json`` at once and again by :meth:`write_facts`.
    """

    def __init__(self, folder: Path, facts: RankFacts) -> None:
        folder.mkdir(parents=True, exist_ok=False)
        self.folder = folder
        self.facts = facts
        self._seq = 0
        self._site_ids: dict[SiteKey, int] = {}
        self._rows: dict[str, list[Row]] = {name: [] for name in STREAMS}
        self._files = {name: pa.OSFile(str(folder / f"{name}.arrow"), "wb") for name in STREAMS}
        self._writers = {name: pa.ipc.new_stream(self._files[name], schema) for name, schema in STREAMS.items()}
        pa.array([0])  # pyarrow imports pandas here, where there is one: now, not where a step's memory is measured
        self.write_facts()

    def write_facts(self) -> None:
        """Write ``rank.json`` atomically."""
        text = msgspec.json.encode(self.facts, enc_hook=_plain_number)
        write_atomically(self.folder / "rank.json", msgspec.json.format(text))

    def digest(
        self,
        digest: Digest,
        *,
        site: Site,
        name: str,
        step: int,
        part: str = "",
        module: str = "",
        batch: int = -1,
        occurrence: int = 0,
        backward: int = 0,
        rows: int = 0,
        flags: int = 0,
        offsets: tuple[int, ...] | None = None,
        global_shape: tuple[int, ...] | None = None,
        placement: str = "",
    ) -> None:
        """Append one digest; the site's description is written once."""
        key = (site, name, part, module, digest.dtype, digest.shape, offsets, global_shape, placement)
        site_id = self._site_ids.get(key)
        if site_id is None:
            site_id = self._site_ids[key] = len(self._site_ids)
            self._rows["sites"].append(
                (
                    site_id,
                    str(site),
                    name,
                    part,
                    module,
                    digest.dtype,
                    list(digest.shape),
                    list(offsets) if offsets is not None else None,
                    list(global_shape) if global_shape is not None else None,
                    placement,
                )
            )
        row = (self._next(), site_id, step, batch, occurrence, backward, rows, flags)
        row += (digest.count, digest.num_nan, digest.num_inf, digest.sum, digest.sum_abs, digest.sum_sq)
        self._append("digests", (*row, digest.minimum, digest.maximum, digest.hash, digest.sketch.tobytes()))

    def samples(
        self,
        *,
        step: int,
        batch: int,
        root: str,
        training: bool,
        ids: np.ndarray,
        piece: tuple[int, int, int] = (0, 0, 0),
    ) -> None:
        """Append the identities, shape (rows,) uint64, of a batch that entered a root module, or of a piece of each.

        ``piece`` is (start, stop, total) along the sequence; zeros for whole samples.
        """
        self._append("samples", (self._next(), time.time_ns(), step, batch, root, training, *piece, ids))

    def load(self, row: Row) -> None:
        """Append a batch that a loader delivered: a row of ``LOADS``."""
        self._append("loads", row)

    def event(self, kind: Event, *, step: int, name: str = "", value: float | None = None, **data: Any) -> None:
        """Append an event; ``data`` is JSON, and numbers in it may be numpy's."""
        text = msgspec.json.encode(data, enc_hook=_plain_number).decode() if data else ""
        self._append("events", (self._next(), time.time_ns(), step, str(kind), name, value, text))

    def flush(self) -> None:
        """Write what waits. Sites go first, so that no digest on disk names a site that is not."""
        for name in STREAMS:
            rows = self._rows[name]
            if rows:
                self._rows[name] = []
                columns = list(zip(*rows, strict=True))
                schema = STREAMS[name]
                arrays = [pa.array(column, type=field.type) for column, field in zip(columns, schema, strict=True)]
                self._writers[name].write_batch(pa.record_batch(arrays, schema=schema))

    def close(self) -> None:
        """Flush, end the streams and write the facts a last time; a second call does nothing."""
        if all(file.closed for file in self._files.values()):
            return
        self.flush()
        for name in STREAMS:
            self._writers[name].close()
            self._files[name].close()
        self.write_facts()

    def _next(self) -> int:
        self._seq += 1
        return self._seq

    def _append(self, stream: str, row: Row) -> None:
        self._rows[stream].append(row)
        if len(self._rows[stream]) >= _FLUSH_AT:
            self.flush()
