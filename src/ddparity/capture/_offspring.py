"""Samples that a model made: known by the sample they were made from, since rounding gives them other bits every time.

A GAN's critic is given fresh images and generated ones in one tensor, ``torch.cat([real, fake])``. The generated rows
are those that a model returned earlier in the step, bit for bit, so they are found again by their contents.
"""

from collections.abc import Iterable

import numpy as np
import torch

from ddparity.digest import row_hashes

_MAX_ELEMENTS = 1 << 22
"""Outputs beyond it are not looked at: what one model makes for another is not as large as the logits of a language."""
_TRIES = 3
"""Training steps after which a training that hands nothing on is believed to hand nothing on."""
_MADE = 0xD1B54A32D192ED03


class Offspring:
    """What root models returned in this training step, row by row: contents -> identity."""

    def __init__(self) -> None:
        self._rows: list[tuple[tuple[int, ...], dict[int, int]]] = []
        self._num_steps = 0
        self.found = False
        """Whether some model of this training was given what another one made."""

    def new_step(self) -> None:
        """Forget what was made."""
        self._rows.clear()
        self._num_steps += 1

    @property
    def wanted(self) -> bool:
        """Whether it is worth to look at what models return."""
        return self.found or self._num_steps <= _TRIES

    def made(self, rows: torch.Tensor, ids: np.ndarray) -> None:
        """Remember rows that a model made, one of each sample; ``ids`` are the samples' identities, (n,) uint64."""
        if not self.wanted or rows.dim() < 2 or len(rows) != len(ids) or rows.numel() > _MAX_ELEMENTS:
            return
        with np.errstate(over="ignore"):
            own = (ids ^ np.uint64(_MADE)) * np.uint64(0x9E3779B97F4A7C15)
        contents = row_hashes(rows)
        self._rows.append((tuple(rows.shape[1:]), dict(zip(contents.tolist(), own.tolist(), strict=True))))

    def known(self, rows: torch.Tensor, contents: Iterable[int]) -> np.ndarray | None:
        """Return the identities of a tensor's rows where some are a model's, by their contents; else None."""
        shape = tuple(rows.shape[1:])
        tables = [table for made, table in self._rows if made == shape]
        if not tables:
            return None
        every = {content: own for table in tables for content, own in table.items()}
        contents = list(contents)
        if not any(content in every for content in contents):
            return None
        self.found = True
        return np.array([every.get(content, content) for content in contents], dtype=np.uint64)
