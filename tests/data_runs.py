"""Runs made of sample identities alone: what the data layer's rules see of a trial."""

from pathlib import Path

import numpy as np

from ddparity.judge._run import RankStep, Run
from ddparity.trace import RankFacts, RankStatus, RankTrace, SampleRow, Trial, TrialFacts, TrialStatus


def run(ranks, *, evaluated=None, completed=True) -> Run:
    """Make a run of ``ranks[rank][step]`` lists of training identities and ``evaluated[rank][step]`` of others."""
    facts = TrialFacts(id="t", name="t", command=["python"], cwd="/", status=TrialStatus.COMPLETED)
    traces = [RankTrace(Path(), rank_facts(rank, len(ranks), completed=completed)) for rank in range(len(ranks))]
    steps = {}
    for rank, batches in enumerate(ranks):
        steps[rank] = {
            step: RankStep(samples=[row(step, ids, True)], complete=True) for step, ids in enumerate(batches)
        }
        for step, ids in (evaluated or {}).get(rank, {}).items():
            found = steps[rank].setdefault(step, RankStep())
            found.samples.append(row(step, ids, False))
    return Run(Trial(Path(), facts, traces), steps)


def rank_facts(rank, world_size, *, completed=True):
    status = RankStatus.FINISHED if completed else RankStatus.RUNNING
    return RankFacts(rank=rank, local_rank=rank, world_size=world_size, pid=1, hostname="h", status=status)


def row(step, ids, training):
    return SampleRow(step, step, 0, "", training, 0, 0, 0, np.array(ids, dtype=np.uint64))
