"""Where a rank's parts belong in the control: of parameters, and of samples cut along the sequence."""

import math
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ddparity._errors import TraceError

from ._against import Against
from ._placement import Located, locate
from ._slices import U64, Piece, SliceWriter

if TYPE_CHECKING:
    from ddparity.digest import RowKeys

    from ._session import Session

_MAX_ELEMENTS = 16 << 20
"""Positions of samples that a control keeps, all steps together."""


class Pieces:
    """Both ends: a control keeps what others need to find their place in it, a candidate looks there."""

    def __init__(self, session: "Session") -> None:
        self.session = session
        self._against: Against | None = None
        self._writer: SliceWriter | None = None
        self._num_kept = 0
        self._declared: dict[str, tuple[int, int]] = {}

    @property
    def against(self) -> Against:
        """The control that this trial will be held against, read on first use."""
        if self._against is None:
            folder = self.session.config.against
            try:
                self._against = Against(Path(folder) if folder else None)
            except TraceError as error:
                self._against = Against(None)
                self.session.not_recorded("parts", f"which of the control they are: {error}")
        return self._against

    def declared(self, parameter: torch.Tensor, name: str) -> None:
        """Take in what a parameter says of itself, as Megatron marks them: along which dimension it was cut."""
        if getattr(parameter, "tensor_model_parallel", False) is True:
            dim, stride = getattr(parameter, "partition_dim", None), getattr(parameter, "partition_stride", 1)
            if isinstance(dim, int) and isinstance(stride, int):
                self._declared[name] = dim, stride

    def locate(self, tensor: torch.Tensor, name: str) -> Located:
        """Describe a parameter-like tensor; a plain one of another shape than the control's as a part of that."""
        found = locate(tensor)
        session = self.session
        if found.offsets is not None or session.config.against is None or session.world_size < 2:
            return found
        dim, stride = self._declared.get(name, (None, 1))
        if stride != 1:  # interleaved
            return found
        part = self.against.part_of(name, tuple(tensor.shape), session.rank, session.world_size, dim)
        return found if part is None else Located(found.local, *part)

    def find(self, tensors: list[torch.Tensor], ids: U64) -> Piece | None:
        """Find a batch as slices of the control's samples of this step; None if its samples are whole."""
        if self.session.config.against is None or not tensors:
            return None
        return self.against.slices.find(self.session.step, tensors[0], ids)

    def keep(self, number: int, keys: "RowKeys", tensors: list[torch.Tensor]) -> None:
        """Keep a control's batch position by position."""
        session = self.session
        if not session.config.control or session.rank != 0 or not tensors or tensors[0].dim() < 2:
            return
        self._num_kept += math.prod(tensors[0].shape[:2])
        if self._num_kept <= _MAX_ELEMENTS:
            if self._writer is None:
                self._writer = SliceWriter(Path(session.config.trial_dir))
            self._writer.keep(session.step, number, keys.ids, tensors[0])

    def close(self) -> None:
        """End what is written."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
