"""Runs made of sample identities alone: what the data layer's rules see of a trial."""

from pathlib import Path

import numpy as np

from ddparity.judge._run import RankStep, Run
from ddparity.trace import (
    EventRow,
    Loads,
    RankFacts,
    RankStatus,
    RankTrace,
    SampleRow,
    Trial,
    TrialFacts,
    TrialStatus,
    WorkerStreams,
)


def run(ranks, *, evaluated=None, completed=True, passes=()) -> Run:
    """Make a run of ``ranks[rank][step]`` lists of training identities and ``evaluated[rank][step]`` of others."""
    held = trial(len(ranks), passes, completed=completed)
    steps = {}
    for rank, batches in enumerate(ranks):
        rows = {step: [row(step, ids, True)] for step, ids in enumerate(batches)}
        steps[rank] = {step: RankStep(samples=found, complete=True) for step, found in rows.items()}
        for step, ids in (evaluated or {}).get(rank, {}).items():
            found = steps[rank].setdefault(step, RankStep())
            found.samples.append(row(step, ids, False))
    return Run(held, steps)


def trial(world_size, passes=(), *, completed=True, wrapper="", status=TrialStatus.COMPLETED) -> Trial:
    """Make a trial whose ranks' loaders delivered ``passes``: see ``loader_pass``."""
    facts = TrialFacts(id="t", name="t", command=["python"], cwd="/", status=status)
    traces = []
    for rank in range(world_size):
        ended = RankStatus.FINISHED if completed else RankStatus.RUNNING
        own = RankFacts(rank=rank, local_rank=rank, world_size=world_size, pid=1, hostname="h", status=ended)
        trace = RankTrace(Path("nowhere"), own)
        mine = [each for each in passes if each["rank"] == rank]
        events = [e for each in mine for e in each["events"]] + [event("wrap", wrapper)] * bool(wrapper)
        trace.__dict__.update(events=events, loads=loads(mine))
        trace.__dict__["worker_streams"] = [s for each in mine for s in each["streams"]]
        traces.append(trace)
    return Trial(Path("nowhere"), facts, traces)


def loader_pass(
    rank, ids, *, loader=0, epoch=0, batch=4, step=0, ended=True, training=True, content=1, stream=False, **facts
):
    """One pass of a rank over a loader that delivered ``ids`` in batches."""
    sampler = facts.pop("sampler", {})
    streams, labels = facts.pop("streams", ()), facts.pop("labels", None)
    base = {
        "dataset": "Data",
        "root": "Data",
        "root_number": 0,
        "ids": "content" if stream else "index",
        "batch_size": batch,
        "num_workers": 0,
    }
    known = {**base, "sampler": sampler, **facts}
    found = [event("loader", str(loader), step, epoch=epoch, **known)]
    if training is not None:
        found.append(event("loader_use", str(loader), step, training=training))
    if ended:
        found.append(event("loader_end", str(loader), step, epoch=epoch))
    batches = [list(ids[start : start + batch]) for start in range(0, len(ids), batch)]
    drawn = [WorkerStreams(loader=loader, epoch=epoch, **each) for each in streams]
    return {
        "rank": rank,
        "events": found,
        "streams": drawn,
        "loader": loader,
        "epoch": epoch,
        "step": step,
        "batches": batches,
        "content": [content + each[0] if content else 0 for each in batches],
        "labels": labels or [-1] * len(batches),
    }


def loads(passes) -> Loads:
    rows = [(p, number, ids) for p in passes for number, ids in enumerate(p["batches"])]
    sizes = [len(ids) for _, _, ids in rows]

    def column(values, dtype=np.int64):
        return np.array(list(values), dtype=dtype)

    return Loads(
        time_ns=column(range(len(rows))),
        step=column(p["step"] for p, _, _ in rows),
        loader=column(p["loader"] for p, _, _ in rows),
        epoch=column(p["epoch"] for p, _, _ in rows),
        number=column(number for _, number, _ in rows),
        wait_ns=column(1000 for _ in rows),
        labels=column(p["labels"][number] for p, number, _ in rows),
        content=column((p["content"][number] for p, number, _ in rows), np.uint64),
        offsets=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
        ids=column((i for _, _, ids in rows for i in ids), np.uint64),
    )


def event(kind, name="", step=0, value=None, **data):
    return EventRow(0, 0, step, kind, name, value, data)


def row(step, ids, training):
    return SampleRow(step, step, 0, "", training, 0, 0, 0, np.array(ids, dtype=np.uint64))
