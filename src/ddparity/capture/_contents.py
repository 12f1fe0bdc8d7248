"""Whether a parameter still holds what it held when it was recorded: sums of its bits, one pass over memory each."""

import torch

from ._guard import is_plain
from ._identity import IdentityMap
from ._placement import locate

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Contents:
    """The sums of what was recorded; a digest would cost ten times as much."""

    def __init__(self) -> None:
        self._sums: IdentityMap[int] = IdentityMap()

    def keep(self, tensor: torch.Tensor) -> None:
        """Remember what a tensor holds now."""
        found = _sum_of_bits(tensor)
        if found is None:
            self._sums.remove(tensor)
        else:
            self._sums.put(tensor, found)

    def changed(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor whose content is remembered holds something else now."""
        known = self._sums.get(tensor)
        return known is not None and _sum_of_bits(tensor) not in (None, known)

    def clear(self) -> None:
        """Forget everything."""
        self._sums.clear()


def _sum_of_bits(tensor: torch.Tensor) -> int | None:
    """Return the sum, modulo 2**64, of a rank's own elements read as integers; None where they cannot be read.

    Elements that trade places go unnoticed: it is a hint at what to record, not a digest.
    """
    local = locate(tensor).local.detach()
    if not is_plain(local):
        return None
    local = torch.view_as_real(local) if local.is_complex() else local
    words = local.view(_INTEGERS[local.element_size()])
    if words.is_contiguous():
        flat, each = words.view(-1), 8 // words.element_size()
        if flat.numel() % each == 0 and flat.storage_offset() % each == 0:  # eight bytes at a time are far quicker
            words = flat.view(torch.int64)
    return int(words.sum(dtype=torch.int64))
