"""What a DataLoader is made of: dataset, sampler, sizes; and which sample of which dataset an index means."""

from array import array
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Subset

from ddparity.digest import row_hashes

from ._batch import named_tensors
from ._guard import is_plain

_SAMPLER_FACTS = ("num_replicas", "rank", "epoch", "seed", "shuffle", "drop_last", "total_size", "num_samples")
_LABELS = ("labels", "label", "targets", "target")
_MASKS = ("attention_mask", "loss_mask", "mask")
_IGNORED = -100
_MAX_CHAIN = 8
_EDGE = 64
"""Elements from either end of a row that tell one sample of a stream from another."""
_STIR = np.uint64(0x9E3779B97F4A7C15)


def loader_facts(loader: DataLoader[Any], *, map_style: bool) -> dict[str, Any]:
    """Return what can be said of a loader without calling anything of the user's but ``__len__``."""
    root, _ = root_of(loader.dataset)
    facts: dict[str, Any] = {
        "dataset": type(loader.dataset).__name__,
        "length": _length(loader.dataset) if map_style else None,
        "root": type(root).__name__,
        "root_length": _length(root) if map_style else None,
        "ids": "index" if map_style else "content",
        "batch_size": loader.batch_size,
        "num_batches": _length(loader) if map_style else None,
        "drop_last": loader.drop_last,
        "num_workers": loader.num_workers,
        "persistent_workers": loader.persistent_workers,
        "sampler": _sampler(loader),
    }
    return {key: value for key, value in facts.items() if value is not None}


def root_of(dataset: Any) -> tuple[Any, list[Sequence[int]]]:
    """Follow subsets to the dataset that they are of; also return their indices, outermost first."""
    maps: list[Sequence[int]] = []
    for _ in range(_MAX_CHAIN):
        if not isinstance(dataset, Subset):
            break
        maps.append(dataset.indices)
        dataset = dataset.dataset
    return dataset, maps


def index_ids(index: Any, maps: list[Sequence[int]]) -> np.ndarray:
    """Return one number a sample for what a sampler drew, (n,) uint64: its index in the root dataset.

    Keys that are no numbers are hashed.
    """
    flat = index if type(index) is list and index and type(index[0]) is int else list(_flat(index))
    try:
        for indices in maps:
            flat = [indices[i] for i in flat]
        return np.frombuffer(array("q", flat), dtype=np.uint64)  # one pass: numpy would look at the types first
    except (TypeError, ValueError, IndexError, OverflowError):
        return np.array([_hash(key) for key in flat], dtype=np.uint64)


def content_ids(batch: Any) -> np.ndarray:
    """Return one number a sample for what a loader delivered, (n,) uint64, made of the ends of each row."""
    tensors = [t for _, t in named_tensors(batch) if is_plain(t) and t.dim() and t.numel()]
    if not tensors:
        return np.array([_hash(row) for row in _rows(batch)], dtype=np.uint64)
    sizes = [t.shape[0] for t in tensors]
    size = max(sizes, key=sizes.count)
    ids = np.zeros(size, dtype=np.uint64)
    for tensor in tensors:
        if tensor.shape[0] == size:
            with np.errstate(over="ignore"):
                ids = ids * _STIR + row_hashes(_ends(tensor.detach()))
    return ids


def first_content(batch: Any) -> int:
    """Return a number made of a batch's first sample, from the ends of its tensors; 0 if none is in main memory."""
    digest = blake2b(digest_size=8)
    found = False
    for _, tensor in named_tensors(batch):
        if tensor.device.type == "cpu" and tensor.dim() and tensor.shape[0] and is_plain(tensor):
            row = tensor.detach()[0].resolve_conj().resolve_neg().reshape(-1)
            for end in (row[:_EDGE], row[-_EDGE:]) if row.numel() > 2 * _EDGE else (row,):
                digest.update(end.contiguous().view(torch.uint8).numpy().tobytes())
            found = True
    return int.from_bytes(digest.digest(), "little") if found else 0


def num_labels(batch: Any) -> int:
    """Return how many labels of a batch of sequences count: those not ignored, or not masked; -1 if it has none."""
    found = {path.rpartition(".")[2]: t for path, t in named_tensors(batch) if t.dim() >= 2 and is_plain(t)}
    for name in _LABELS:
        if name in found and not found[name].is_floating_point():
            return int((found[name] != _IGNORED).sum())
    for name in _MASKS:
        if name in found:
            return int(found[name].sum())
    return -1


def first_digest(index: Any) -> str:
    """Return a digest of the samples of a first fetch, or an empty text where the dataset chooses them itself."""
    flat = list(_flat(index))
    return "" if all(key is None for key in flat) else blake2b(repr(flat).encode(), digest_size=8).hexdigest()


def _ends(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    rows = tensor.resolve_neg().reshape(tensor.shape[0], -1)
    return rows if rows.shape[1] <= 4 * _EDGE else torch.cat((rows[:, :_EDGE], rows[:, -_EDGE:]), dim=1)


def _rows(batch: Any) -> Iterable[Any]:
    """Yield a batch without tensors sample by sample: texts, or columns of equal length."""
    columns = list(batch.values()) if isinstance(batch, dict) else batch
    if isinstance(columns, (list, tuple)) and columns and all(isinstance(c, (list, tuple)) for c in columns):
        return zip(*columns, strict=False)
    return columns if isinstance(columns, (list, tuple)) else [columns]


def _flat(index: Any) -> Iterable[Any]:
    if isinstance(index, (list, tuple)):
        for inner in index:
            yield from _flat(inner)
    elif isinstance(index, (torch.Tensor, np.ndarray)):
        yield from _flat(index.tolist())
    else:
        yield index


def _hash(key: Any) -> int:
    return int.from_bytes(blake2b(repr(key).encode(), digest_size=8).digest(), "little")


def _length(sized: Any) -> int | None:
    try:
        return len(sized)
    except Exception:
        return None


def _sampler(loader: DataLoader[Any]) -> dict[str, Any]:
    sampler: Any = loader.batch_sampler if loader.batch_sampler is not None else loader.sampler
    chain: list[str] = []
    facts: dict[str, Any] = {}
    for _ in range(_MAX_CHAIN):
        chain.append(type(sampler).__name__)
        held = getattr(sampler, "__dict__", {})
        plain = {name: held[name] for name in _SAMPLER_FACTS if isinstance(held.get(name), (bool, int))}
        facts = {**facts, **plain} if "num_replicas" in plain or not facts else facts
        inner = held.get("sampler", held.get("batch_sampler"))
        if inner is None or inner is sampler:
            break
        sampler = inner
    return {"chain": chain, **facts}
