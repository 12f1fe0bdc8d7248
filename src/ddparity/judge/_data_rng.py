"""Random streams of datasets: do workers, ranks or epochs draw the same numbers for different samples?

Two streams are copies if they were in the same state before the first fetch and in the same state after it: one that
is seeded anew for each sample starts alike and ends elsewhere. A generator that was not drawn from says nothing.
"""

from collections import defaultdict
from dataclasses import dataclass

from ddparity.trace import Event, RankTrace, Trial, WorkerStreams

from ._data_audit import Audit, deviates, passed

NAME = "rng.augmentation"


@dataclass(frozen=True, kw_only=True)
class Draw:
    """What one worker drew first in one epoch."""

    rank: int
    loader: int
    epoch: int
    worker: int
    first: str
    step: int


def audit_streams(trial: Trial) -> list[Audit]:
    """Say whether random augmentation differs between workers, ranks and epochs."""
    by_state: dict[tuple[str, str, str], list[Draw]] = defaultdict(list)
    num = 0
    for rank in trial.ranks:
        steps, evaluating = _loaders(rank)
        for each in [*_in_process(rank), *rank.worker_streams]:
            if each.loader in evaluating:
                continue
            step = steps.get((each.loader, each.epoch), 0)
            num += bool(each.streams)
            for name, (before, after) in each.streams.items():
                where = {"rank": rank.facts.rank, "loader": each.loader, "epoch": each.epoch, "worker": each.worker}
                by_state[name, before, after].append(Draw(first=each.first, step=step, **where))
    copied = {key: draws for key, draws in by_state.items() if _are_copies(draws)}
    if copied:
        return [_finding(copied)]
    if not num:
        return []
    return [passed("random", f"{num} first fetches drew random numbers, no two of them the same")]


def _are_copies(draws: list[Draw]) -> bool:
    places = {(d.rank, d.worker, d.epoch) for d in draws}
    if len(places) < 2:
        return False
    if len({(d.rank, d.worker) for d in draws}) == 1:
        return True  # epoch after epoch
    firsts = [d.first for d in draws]
    return "" in firsts or len(set(firsts)) > 1  # replicas of one batch are meant to be augmented alike


def _finding(copied: dict[tuple[str, str, str], list[Draw]]) -> Audit:
    (name, _, _), draws = min(copied.items(), key=lambda item: (min(d.step for d in item[1]), item[0]))
    kinds = [kind for kind in ("rank", "worker", "epoch") if len({getattr(d, kind) for d in draws}) > 1]
    kinds = [kind for kind in kinds if kind != "worker" or _differ_within_a_rank(draws)] or kinds
    among = " and ".join(f"{kind}s" for kind in kinds)
    streams = sorted({key[0] for key in copied})
    return deviates(
        "random",
        f"{len(draws)} first fetches of different {among} drew the same numbers from {name}",
        "data.rng_copied",
        step=min(d.step for d in draws),
        at=NAME,
        ranks=sorted({d.rank for d in draws}),
        generator=name,
        generators=streams,
        same_among=kinds,
        copies=len(draws),
        places=[f"rank {d.rank}, worker {d.worker}, epoch {d.epoch}" for d in draws[:8]],
    )


def _differ_within_a_rank(draws: list[Draw]) -> bool:
    workers: dict[tuple[int, int], set[int]] = defaultdict(set)
    for draw in draws:
        workers[draw.rank, draw.epoch].add(draw.worker)
    return any(len(found) > 1 for found in workers.values())


def _in_process(rank: RankTrace) -> list[WorkerStreams]:
    found: list[WorkerStreams] = []
    for event in rank.events:
        streams = event.data.get("streams")
        if event.kind == Event.STREAMS and event.name.isdecimal() and isinstance(streams, dict):
            pairs = {
                str(name): (str(v[0]), str(v[1])) for name, v in streams.items() if isinstance(v, list) and len(v) == 2
            }
            epoch, first = int(event.data.get("epoch", 0)), str(event.data.get("first", ""))
            found.append(WorkerStreams(loader=int(event.name), epoch=epoch, worker=-1, first=first, streams=pairs))
    return found


def _loaders(rank: RankTrace) -> tuple[dict[tuple[int, int], int], set[int]]:
    """Return the training step at which each epoch of each loader began, and the loaders that are only evaluated."""
    steps: dict[tuple[int, int], int] = {}
    uses: dict[int, set[bool]] = defaultdict(set)
    for event in rank.events:
        if event.kind == Event.LOADER and event.name.isdecimal():
            steps[int(event.name), int(event.data.get("epoch", 0))] = event.step
        elif event.kind == Event.LOADER_USE and event.name.isdecimal():
            uses[int(event.name)].add(bool(event.data.get("training")))
    return steps, {loader for loader, used in uses.items() if used == {False}}
