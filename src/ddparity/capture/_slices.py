"""Slices of samples along the sequence: where a context-parallel rank's input stands in the control's samples.

A control keeps a hash of every position of its samples in its private folder. A candidate whose samples are not the
control's looks whether they are slices of them, all at the same place, and takes the control's identities if so.
"""

from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from ddparity.digest import row_hashes
from ddparity.trace import read_stream
from ddparity.trace._streams import SEQUENCES

U64 = npt.NDArray[np.uint64]

_MAX_POSITIONS = 1 << 22
_FILE = "sequences.arrow"


class Piece(NamedTuple):
    """Slices ``start:stop`` of samples of length ``total``, and the identities of those samples, shape (rows,)."""

    ids: U64
    start: int
    stop: int
    total: int


class SliceWriter:
    """Keeps a control's samples position by position."""

    def __init__(self, trial: Path) -> None:
        folder = trial / "private"
        folder.mkdir(mode=0o700, exist_ok=True)
        self._file = pa.OSFile(str(folder / _FILE), "wb")
        self._writer = pa.ipc.new_stream(self._file, SEQUENCES)

    def keep(self, step: int, batch: int, ids: U64, tensor: torch.Tensor) -> None:
        """Keep the positions of a batch, (rows, length, ...); tensors without a sequence and huge ones are left out."""
        if tensor.dim() < 2 or tensor.shape[0] * tensor.shape[1] > _MAX_POSITIONS:
            return
        row = (step, batch, tensor.shape[1], ids, _positions(tensor).reshape(-1))
        arrays = [pa.array([value], type=field.type) for value, field in zip(row, SEQUENCES, strict=True)]
        self._writer.write_batch(pa.record_batch(arrays, schema=SEQUENCES))

    def close(self) -> None:
        """End the stream."""
        self._writer.close()
        self._file.close()


class SliceTable:
    """A control's samples by training step; empty without a control."""

    def __init__(self, trial: Path | None) -> None:
        self._steps: dict[int, list[tuple[U64, U64]]] = defaultdict(list)
        path = trial / "private" / _FILE if trial is not None else None
        if path is None or not path.is_file():
            return
        table, _ = read_stream(path, SEQUENCES)
        for row in table.to_pylist():
            ids = np.asarray(row["ids"], dtype=np.uint64)
            positions = np.asarray(row["positions"], dtype=np.uint64)
            if row["length"] > 0 and positions.size == ids.size * row["length"]:
                self._steps[row["step"]].append((ids, positions.reshape(ids.size, row["length"])))

    def find(self, step: int, tensor: torch.Tensor, own: U64) -> Piece | None:
        """Find the rows of ``tensor`` (rows, length, ...) as slices of the control's samples of a step.

        Rows whose identities, ``own``, are the control's are whole, though they may be padded to another length.
        """
        if any(np.isin(own, ids).all() for ids, _ in self._steps.get(step, [])):
            return None
        if tensor.dim() < 2 or tensor.shape[0] * tensor.shape[1] > _MAX_POSITIONS or not self._steps.get(step):
            return None
        wanted = _positions(tensor)
        for ids, positions in self._steps[step]:
            piece = _find(wanted, ids, positions)
            if piece is not None:
                return piece
        return None


def _positions(tensor: torch.Tensor) -> U64:
    """Return a hash of each position, shape (rows, length)."""
    rows, length = tensor.shape[:2]
    return row_hashes(tensor.reshape(rows * length, -1)).reshape(rows, length)


def _find(wanted: U64, ids: U64, positions: U64) -> Piece | None:
    length, total = wanted.shape[1], positions.shape[1]
    if not 0 < length < total or wanted.shape[0] == 0:
        return None
    starts = np.unique(np.nonzero(positions[:, : total - length + 1] == wanted[0, 0])[1])
    for start in starts.tolist():
        windows = {row.tobytes(): index for index, row in enumerate(positions[:, start : start + length])}
        found = [windows.get(row.tobytes()) for row in wanted]
        if None not in found:
            return Piece(ids[[i for i in found if i is not None]], start, start + length, total)
    return None
