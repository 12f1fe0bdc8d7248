"""What loaders delivered, pass by pass: one iteration over a dataset on every rank."""

from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from ddparity.trace import Event, RankTrace, Trial


@dataclass(frozen=True, kw_only=True)
class RankPass:
    """One iteration over a loader on one rank.

    Attributes:
        facts: What the recorder said of loader, dataset and sampler.
        step: Training steps before it.
        exhausted: Whether the loader came to its end.
        sizes: Samples of each batch, (batches,).
        ids: Samples in the order in which they came, (n,) uint64.
        content: Contents of the first samples of the first batches, 0 where not taken, (batches,).
        wait_ns, time_ns, labels: Of each batch, (batches,).
        steps: Training steps before each batch came, (batches,).
    """

    rank: int
    loader: int
    epoch: int
    facts: dict[str, Any]
    step: int
    exhausted: bool
    sizes: np.ndarray
    ids: np.ndarray
    content: np.ndarray
    wait_ns: np.ndarray
    time_ns: np.ndarray
    labels: np.ndarray
    steps: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    @property
    def sampler(self) -> dict[str, Any]:
        """Facts of the sampler."""
        found = self.facts.get("sampler")
        return found if isinstance(found, dict) else {}

    @property
    def num_batches(self) -> int:
        """Batches that came."""
        return len(self.sizes)

    @property
    def num_skipped(self) -> int:
        """How many batches were passed over at the start: more came before the first step than a step takes."""
        _, counts = np.unique(self.steps, return_counts=True)
        return int(counts[0] - np.median(counts[1:])) if len(counts) > 1 and counts[0] > counts[1:].max() else 0

    def before(self, step: int) -> np.ndarray:
        """Return the samples of its batches that came before a training step, (n,) uint64."""
        return self.ids[: int(self.sizes[self.steps < step].sum())]

    @property
    def firsts(self) -> dict[int, int]:
        """First sample of a batch -> its content, where that was taken."""
        starts = np.cumsum(self.sizes) - self.sizes
        return {
            int(self.ids[start]): int(content)
            for start, size, content in zip(starts, self.sizes, self.content, strict=True)
            if size and content
        }


@dataclass(frozen=True, kw_only=True)
class Pass:
    """The same pass on all ranks.

    Attributes:
        dataset: Name of the dataset's class, or of the one it is a subset of.
        key: What tells this dataset from another.
        ordinal: Which pass over it, from 0.
        training: Whether what it delivered trained a model; None if it entered none.
        ranks: Rank -> its pass.
    """

    dataset: str
    key: tuple[Any, ...]
    ordinal: int
    training: bool | None
    ranks: dict[int, RankPass] = field(default_factory=dict)

    @property
    def step(self) -> int:
        """Training steps before it."""
        return min(each.step for each in self.ranks.values())

    @property
    def facts(self) -> dict[str, Any]:
        """Facts of the lowest rank's loader."""
        return self.ranks[min(self.ranks)].facts

    @property
    def by_index(self) -> bool:
        """Whether samples are known by their index in the dataset."""
        return self.facts.get("ids") == "index"

    @property
    def exhausted(self) -> bool:
        """Whether every rank came to the end of its loader."""
        return all(each.exhausted for each in self.ranks.values())

    @property
    def num_replicas(self) -> int:
        """Number of shares that the samplers make."""
        found = self.ranks[min(self.ranks)].sampler.get("num_replicas", 1)
        return found if isinstance(found, int) else 1

    @cached_property
    def parts(self) -> list[list[int]]:
        """Ranks that hold the same multiset of samples, together."""
        groups: dict[bytes, list[int]] = {}
        for rank, each in sorted(self.ranks.items()):
            groups.setdefault(np.sort(each.ids).tobytes(), []).append(rank)
        return list(groups.values())

    @cached_property
    def same_dataset(self) -> bool:
        """Whether it is known that an index means the same sample on every rank."""
        return same_dataset([self])


def same_dataset(passes: list[Pass]) -> bool:
    """Whether it is known that an index means the same sample on every rank, from passes over one dataset.

    A dataset that was cut by hand has the same indices on every rank; random augmentation gives one sample several
    contents.
    """
    if any(not each.by_index or each.num_replicas > 1 for each in passes):
        return True
    contents: dict[int, dict[int, int]] = defaultdict(dict)
    for each in passes:
        for rank, one in each.ranks.items():
            for sample, content in one.firsts.items():
                contents[sample][rank] = content
    shared = [set(by_rank.values()) for by_rank in contents.values() if len(by_rank) > 1]
    return any(len(found) == 1 for found in shared)


def passes_of(trial: Trial) -> list[Pass]:
    """Return the passes of a trial in the order in which they began."""
    found: dict[tuple[Any, ...], Pass] = {}
    for rank in trial.ranks:
        counts: dict[tuple[Any, ...], int] = defaultdict(int)
        for each, training in _rank_passes(rank):
            facts = each.facts
            key = (*(facts.get(name) for name in ("root", "root_length", "root_number")), training)
            at = (*key, counts[key])
            counts[key] += 1
            if at not in found:
                dataset = str(facts.get("root", "?"))
                found[at] = Pass(dataset=dataset, key=key, ordinal=at[-1], training=training)
            found[at].ranks[each.rank] = each
    return sorted(found.values(), key=lambda each: (each.step, each.ordinal))


def _rank_passes(rank: RankTrace) -> list[tuple[RankPass, bool | None]]:
    begun: dict[tuple[int, int], tuple[int, dict[str, Any]]] = {}
    ended: set[tuple[int, int]] = set()
    uses: dict[int, set[bool]] = defaultdict(set)
    for event in rank.events:
        if not event.name.isdecimal():
            continue
        key = (int(event.name), int(event.data.get("epoch", 0)))
        if event.kind == Event.LOADER:
            begun[key] = (event.step, event.data)
        elif event.kind == Event.LOADER_END:
            ended.add(key)
        elif event.kind == Event.LOADER_USE:
            uses[key[0]].add(bool(event.data.get("training")))
    loads = rank.loads
    sizes = np.diff(loads.offsets)
    found: list[tuple[RankPass, bool | None]] = []
    for key, (step, facts) in begun.items():
        chosen = np.flatnonzero((loads.loader == key[0]) & (loads.epoch == key[1]))
        if not len(chosen) and key not in ended:
            continue  # begun, and given up before anything came
        ids = [loads.ids[loads.offsets[i] : loads.offsets[i + 1]] for i in chosen]
        one = RankPass(
            rank=rank.facts.rank,
            loader=key[0],
            epoch=key[1],
            facts=facts,
            step=step,
            exhausted=key in ended,
            sizes=sizes[chosen],
            ids=np.concatenate(ids) if ids else np.zeros(0, dtype=np.uint64),
            content=loads.content[chosen],
            wait_ns=loads.wait_ns[chosen],
            time_ns=loads.time_ns[chosen],
            labels=loads.labels[chosen],
            steps=loads.step[chosen],
        )
        used = uses.get(key[0], set[bool]())
        found.append((one, True if True in used else False if used else None))
    newest = {(one.loader, one.step): one.epoch for one, _ in found}
    # A training's loader that was begun and left, and begun again before a step: somebody looked at its first batch.
    return [
        (one, training)
        for one, training in found
        if not training or one.exhausted or newest[one.loader, one.step] == one.epoch
    ]
