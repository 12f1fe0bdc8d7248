"""The algebra of digests: make, merge, relate. The torch side is loaded on first use; the rest needs numpy only."""

from typing import TYPE_CHECKING, Any

from ._digest import (
    Digest,
    Relation,
    distance,
    merge_mean,
    merge_replicas,
    merge_shards,
    merge_sum,
    merge_weighted,
    relate,
    relative_error,
    same,
    scaled,
)
from ._place import RowKeys
from ._reference import digest_of

if TYPE_CHECKING:
    from ._torch import digest_tensor, row_hashes

__all__ = [
    "Digest",
    "Relation",
    "RowKeys",
    "digest_of",
    "digest_tensor",
    "distance",
    "merge_mean",
    "merge_replicas",
    "merge_shards",
    "merge_sum",
    "merge_weighted",
    "relate",
    "relative_error",
    "row_hashes",
    "same",
    "scaled",
]

_TORCH_SIDE = ("digest_tensor", "row_hashes")


def __getattr__(name: str) -> Any:
    if name in _TORCH_SIDE:
        from . import _torch

        return getattr(_torch, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
