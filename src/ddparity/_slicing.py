"""Rows of nested batches: how many there are, some of them, and several put together."""

from collections import Counter
from typing import Any

import torch


def length_of(batch: Any) -> int:
    """Return the number of samples of a batch: the size of dimension 0 that most of its tensors have; 0 if none."""
    sizes = Counter(tensor.shape[0] for tensor in _tensors(batch) if tensor.dim())
    return sizes.most_common(1)[0][0] if sizes else 0


def cut(batch: Any, start: int, stop: int) -> Any:
    """Return rows ``start`` to ``stop`` of everything in a batch that has one row a sample; the rest as it is."""
    return _cut(batch, start, stop, length_of(batch))


def join(parts: list[Any]) -> Any:
    """Return batches one after the other as one batch."""
    if len(parts) == 1:
        return parts[0]
    return _join(parts, [length_of(part) for part in parts])


def _tensors(batch: Any) -> list[torch.Tensor]:
    if isinstance(batch, torch.Tensor):
        return [batch]
    items = batch.values() if isinstance(batch, dict) else batch if isinstance(batch, (tuple, list)) else ()
    return [tensor for item in items for tensor in _tensors(item)]


def _cut(value: Any, start: int, stop: int, length: int) -> Any:
    if isinstance(value, torch.Tensor):
        return value[start:stop] if value.dim() and value.shape[0] == length else value
    if isinstance(value, dict):
        return {key: _cut(item, start, stop, length) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        if len(value) == length and not any(isinstance(item, (torch.Tensor, dict, tuple, list)) for item in value):
            return value[start:stop]  # one text or number a sample
        return type(value)(_cut(item, start, stop, length) for item in value)
    return value


def _join(values: list[Any], lengths: list[int]) -> Any:
    first = values[0]
    if isinstance(first, torch.Tensor):
        by_row = all(v.dim() and v.shape[0] == n for v, n in zip(values, lengths, strict=True))
        return torch.cat(values) if by_row else first
    if isinstance(first, dict):
        return {key: _join([v[key] for v in values], lengths) for key in first}
    if isinstance(first, (tuple, list)):
        if all(len(v) == n for v, n in zip(values, lengths, strict=True)) and not _tensors(first):
            return type(first)(item for value in values for item in value)
        return type(first)(_join([v[i] for v in values], lengths) for i in range(len(first)))
    return first
