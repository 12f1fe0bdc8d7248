"""What the recorder of a candidate knows of the control: shapes of whole parameters, and where slices belong.

A rank of a hand-written tensor-parallel run holds plain tensors that are parts of the control's; a rank of a
context-parallel run is fed slices of the control's samples. Which part is inferred here, so that digests are keyed
on the global index; whether the inference holds is tested by the judge, on the digests alone.
"""

from pathlib import Path

from ddparity.trace import Site, read_stream
from ddparity.trace._streams import SITES

from ._slices import SliceTable


class Against:
    """The control that a candidate will be held against; empty where there is none."""

    def __init__(self, folder: Path | None) -> None:
        self._shapes: dict[str, tuple[int, ...]] = {}
        self.slices = SliceTable(None)
        rank = folder / "rank-00000" if folder is not None else None
        if rank is None or not (rank / "sites.arrow").is_file():
            return
        table, _ = read_stream(rank / "sites.arrow", SITES)
        for row in table.to_pylist():
            if row["site"] == Site.PARAMETER:
                self._shapes[row["name"]] = tuple(row["shape"] or ())
        self.slices = SliceTable(folder)

    def part_of(
        self, name: str, shape: tuple[int, ...], rank: int, world_size: int, declared: int | None = None
    ) -> tuple[tuple[int, ...], tuple[int, ...], str] | None:
        """Infer which part of the control's parameter a plain tensor is: offsets, global shape, placement.

        One dimension must be a whole fraction of the control's. Ranks of one group are taken to be neighbours, as
        tensor-parallel groups are. ``declared`` is the dimension that the parameter itself names, if it does.
        """
        whole = self._shapes.get(name)
        if whole is None or whole == shape or len(whole) != len(shape) or world_size < 2:
            return None
        cut = [dim for dim in range(len(shape)) if shape[dim] != whole[dim]]
        if len(cut) != 1 or declared not in (None, cut[0]) or shape[cut[0]] == 0 or whole[cut[0]] % shape[cut[0]]:
            return None
        dim, parts = cut[0], whole[cut[0]] // shape[cut[0]]
        if world_size % parts:
            return None
        offsets = tuple((rank % parts) * shape[dim] if d == dim else 0 for d in range(len(shape)))
        return offsets, whole, f"inferred S({dim})"
