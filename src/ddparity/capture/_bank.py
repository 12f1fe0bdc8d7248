"""Pinned data: a control's first batches, kept on the local disk, handed out to a candidate's ranks slice by slice.

For scripts whose loaders give other samples to N processes than to one. The control banks every batch of the steps
that are recorded (``record --control --bank``), as its loaders or ``ddparity.feed`` hand them out. A candidate
(``record --pinned``) runs its loaders as ever and gets, in place of what they return, its rows of what the control
got: batches of one loader are one long list of samples, of which rank r of N takes rows (i N + r) b to (i N + r + 1) b
as its i-th batch of b samples. What is banked lies in the trial's private folder (mode 0700), is never bundled, and
``ddparity purge`` removes it. Files are read back with ``weights_only``: tensors, containers, numbers and texts.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch.utils import data

from ddparity._slicing import cut, join, length_of

from ._around import around

if TYPE_CHECKING:
    from ._session import Session

FEED = "feed"
_MAX_BYTES = 4 << 30
_PLAIN = (torch.Tensor, str, bytes, int, float, bool, type(None))


class PinnedDataError(RuntimeError):
    """The control's batches cannot be handed out to this candidate's ranks; the message names sizes that work."""


def install_bank(session: "Session") -> None:
    """Bank what loaders hand out, or hand out what was banked, as the configuration asks."""
    config = session.config
    if not config.bank and config.pinned is None and not config.fixed_batch:
        return
    hand_out(session, _keeper(session))


class Keeper(Protocol):
    """Who sees every batch before the script does."""

    def passed(self, batch: Any, stream: str = FEED, ranks: tuple[int, int] | None = None) -> Any:
        """Take a batch and return what the script gets."""
        ...


def hand_out(session: "Session", keeper: Keeper) -> None:
    """Let ``keeper`` take what loaders and ``ddparity.feed`` hand out, batch by batch, and hand out what it returns."""
    session.feeder = keeper.passed
    number = 0

    def numbered(_: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
        nonlocal number
        loader._ddparity_number = number
        number += 1

    def begun(iterator: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
        loader._ddparity_epoch = getattr(loader, "_ddparity_epoch", -1) + 1
        iterator._ddparity_stream = f"loader-{getattr(loader, '_ddparity_number', 0):03d}-{loader._ddparity_epoch:05d}"
        iterator._ddparity_ranks = _ranks_of(loader)

    around(data.DataLoader, "__init__", after=numbered)
    around(data.DataLoader, "__iter__", after=begun)
    base: Any = data.dataloader._BaseDataLoaderIter
    plain = base.__next__

    def following(self: Any) -> Any:
        batch = plain(self)
        stream = getattr(self, "_ddparity_stream", None)
        return batch if stream is None else keeper.passed(batch, stream, self._ddparity_ranks)

    base.__next__ = following


def _keeper(session: "Session") -> "Bank | Pins | Fixed":
    if session.config.fixed_batch:
        return Fixed()
    return Bank(session) if session.config.bank else Pins(Path(str(session.config.pinned)) / "private" / "bank")


class Fixed:
    """Hands out the first batch of each stream over and over: on it the loss of a training that works falls."""

    def __init__(self) -> None:
        self._first: dict[str, Any] = {}

    def passed(self, batch: Any, stream: str = FEED, ranks: tuple[int, int] | None = None) -> Any:
        """Return the first batch in place of a later one of the same loader."""
        return self._first.setdefault(stream.rpartition("-")[0] or stream, batch)


def _ranks_of(loader: Any) -> tuple[int, int] | None:
    """Return rank and number of replicas of the sampler that divides the samples, if there is one."""
    for sampler in (loader.sampler, getattr(loader.batch_sampler, "sampler", None)):
        rank, num = getattr(sampler, "rank", None), getattr(sampler, "num_replicas", None)
        if isinstance(rank, int) and isinstance(num, int):
            return rank, num
    return None


class Bank:
    """Writes down what the control's loaders hand out while its steps are recorded."""

    def __init__(self, session: "Session") -> None:
        self._session = session
        self._folder = Path(session.config.trial_dir) / "private" / "bank"
        self._numbers: dict[str, int] = {}
        self._bytes = 0

    def passed(self, batch: Any, stream: str = FEED, ranks: tuple[int, int] | None = None) -> Any:
        """Bank a batch; it goes on to the script as it is."""
        session = self._session
        if not session.recording or not session.may_record() or self._bytes > _MAX_BYTES:
            return batch
        try:
            self._write(batch, stream)
        except Exception as error:
            session.not_recorded("bank", f"a batch of {stream} could not be banked: {type(error).__name__}: {error}")
        return batch

    def _write(self, batch: Any, stream: str) -> None:
        strange = next((type(item).__name__ for item in _leaves(batch) if not isinstance(item, _PLAIN)), None)
        if strange is not None:
            self._session.not_recorded("bank", f"a batch of {stream} holds a {strange}; pass tensors to ddparity.feed")
            return
        self._folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder.mkdir(mode=0o700, exist_ok=True)
        number = self._numbers[stream] = self._numbers.get(stream, -1) + 1
        path = self._folder / f"{stream}.{number:06d}.pt"
        temporary = path.with_suffix(".tmp")
        torch.save(batch, temporary)
        os.replace(temporary, path)
        self._bytes += path.stat().st_size
        if self._bytes > _MAX_BYTES:
            self._session.not_recorded("bank", f"more than {_MAX_BYTES >> 30} GiB of batches")


def _leaves(value: Any, depth: int = 0) -> Iterator[Any]:
    if depth < 8 and type(value) in (tuple, list):
        for item in value:
            yield from _leaves(item, depth + 1)
    elif depth < 8 and type(value) is dict:
        for key, item in value.items():
            yield key
            yield from _leaves(item, depth + 1)
    else:
        yield value


class Pins:
    """Hands out a rank's rows of what the control banked."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers: dict[str, int] = {}
        self._cache: dict[Path, Any] = {}

    def passed(self, batch: Any, stream: str = FEED, ranks: tuple[int, int] | None = None) -> Any:
        """Return this rank's rows in place of a batch; the batch itself where nothing is banked any more.

        Raises:
            PinnedDataError: The control's batch does not divide by the ranks and their batch size.
        """
        number = self._numbers[stream] = self._numbers.get(stream, -1) + 1
        size = length_of(batch)
        first = self._read(stream, 0)
        if first is None or not size:
            return batch
        whole = length_of(first)
        rank, num = ranks if ranks is not None else _world(whole == size)
        if whole % (size * num):
            raise PinnedDataError(_advice(whole, size, num))
        start = (number * num + rank) * size
        parts = []
        while size:
            index, offset = divmod(start, whole)
            banked = self._read(stream, index)
            if banked is None or length_of(banked) < offset + min(size, whole - offset):
                return batch  # beyond what was banked
            taken = min(size, whole - offset)
            parts.append(cut(banked, offset, offset + taken))
            start, size = start + taken, size - taken
        return join(parts)

    def _read(self, stream: str, number: int) -> Any:
        path = self._folder / f"{stream}.{number:06d}.pt"
        if path not in self._cache:
            for old in [key for key in self._cache if not key.name.endswith(".000000.pt")]:
                del self._cache[old]
            self._cache[path] = torch.load(path, weights_only=True, map_location="cpu") if path.is_file() else None
        return self._cache[path]


def _world(whole: bool) -> tuple[int, int]:
    """Return rank and number of ranks; one rank where every rank is given whole batches (tensor parallelism)."""
    distributed = torch.distributed
    if whole or not (distributed.is_available() and distributed.is_initialized()):
        return 0, 1
    return distributed.get_rank(), distributed.get_world_size()


def _advice(whole: int, size: int, num: int) -> str:
    text = f"ddparity --pinned: the control's batch of {whole} samples does not divide into {num} ranks x {size}. "
    if whole % num == 0:
        each = whole // num
        sizes = ", ".join(str(n) for n in range(1, each + 1) if each % n == 0)
        return f"{text}With {num} ranks these batch sizes a rank do: {sizes}."
    below = whole - whole % num
    near = [n for n in (below, below + num) if n]
    return (
        f"{text}No batch size does with {num} ranks: record the control with --bank again, with a batch of "
        f"{' or '.join(map(str, near))}."
    )
