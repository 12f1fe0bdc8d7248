"""What the data layer costs: auditing an epoch of a million samples, and recording a loader of small ones.

    python benchmarks/data.py audit [--samples 1000000] [--ranks 8]
    python benchmarks/data.py loader [--workers 0]

``audit`` writes the trace of an epoch of shuffled samples over the ranks, then audits it in a fresh process and prints
wall time, processor time and the peak of resident memory. ``loader`` runs an epoch of 1 KB samples with and without
the recorder, in turns, and prints the ratio of processor times.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec
import numpy as np

AUDIT = """
import json, resource, sys, time
start = time.perf_counter()
from pathlib import Path
from ddparity.judge import report_data
report = report_data(Path(sys.argv[1]))
usage = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps({
    "wall_s": round(time.perf_counter() - start, 2),
    "cpu_s": round(usage.ru_utime + usage.ru_stime, 2),
    "peak_mb": round(usage.ru_maxrss / 1024),
    "status": report.status,
    "audits": [audit.text for audit in report.audits],
}))
"""


def write_epoch(folder: Path, samples: int, ranks: int, batch: int = 32, seed: int = 0) -> Path:
    """Write the trial of one epoch as ``DistributedSampler`` would deal it out."""
    from ddparity.trace import Event, RankFacts, RankWriter, TrialFacts, TrialStatus

    folder.mkdir(parents=True)
    facts = TrialFacts(id="epoch", name="epoch", command=["python"], cwd="/", status=TrialStatus.COMPLETED)
    (folder / "trial.json").write_bytes(msgspec.json.encode(facts))
    order = np.random.default_rng(seed).permutation(samples).astype(np.uint64)
    for rank in range(ranks):
        own = RankFacts(rank=rank, local_rank=rank, world_size=ranks, pid=1, hostname="benchmark")
        writer = RankWriter(folder / f"rank-{rank:05d}", own)
        mine = order[rank::ranks]
        sampler = {"chain": ["DistributedSampler"], "num_replicas": ranks, "rank": rank, "shuffle": True}
        data = {"root": "Data", "root_length": samples, "root_number": 0, "length": samples, "ids": "index"}
        writer.event(Event.WRAP, step=0, name="DistributedDataParallel")
        writer.event(Event.LOADER, step=0, name="0", epoch=0, batch_size=batch, sampler=sampler, **data)
        writer.event(Event.LOADER_USE, step=0, name="0", training=True)
        for number, start in enumerate(range(0, len(mine), batch)):
            ids = mine[start : start + batch]
            writer.load((number * 10**7, number, 0, 0, number, 10**5, -1, 0, ids))
        writer.event(Event.LOADER_END, step=0, name="0", epoch=0)
        writer.close()
    return folder


def audit(samples: int, ranks: int) -> dict:
    with tempfile.TemporaryDirectory() as scratch:
        folder = write_epoch(Path(scratch) / "trial", samples, ranks)
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        done = subprocess.run([sys.executable, "-c", AUDIT, str(folder)], capture_output=True, text=True, check=True)
    return {"samples": samples, "ranks": ranks, "trace_mb": round(size / 2**20, 1), **json.loads(done.stdout)}


def run_epochs(workers: int, epochs: int) -> None:
    """Iterate a loader of 1 KB samples in this process, recorded or not; prints processor seconds an epoch."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    torch.set_num_threads(1)
    data = TensorDataset(torch.zeros(16_384, 256), torch.zeros(16_384, dtype=torch.long))
    if os.environ.get("DDPARITY_CAPTURE"):  # the trace is open, as it is once training has begun
        from ddparity.capture._session import current

        session = current()
        assert session is not None
        _ = session.writer
    took = []
    for _ in range(epochs):
        before = _processor_time()
        start = time.perf_counter()
        for _ in DataLoader(data, batch_size=32, shuffle=True, num_workers=workers):
            continue
        took.append((_processor_time() - before, time.perf_counter() - start))
    print(json.dumps({"cpu_s": min(cpu for cpu, _ in took), "wall_s": min(wall for _, wall in took)}))


def _processor_time() -> float:
    own, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def loader(workers: int, rounds: int) -> dict:
    taken: dict[bool, list[float]] = {True: [], False: []}
    with tempfile.TemporaryDirectory() as scratch:
        for number in range(2 * rounds):
            recorded = bool(number % 2)
            env = {key: value for key, value in os.environ.items() if key != "DDPARITY_CAPTURE"}
            if recorded:
                env["DDPARITY_CAPTURE"] = json.dumps({"trial_dir": f"{scratch}/{number}"})
            command = [sys.executable, __file__, "epochs", "--workers", str(workers)]
            done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
            taken[recorded].append(json.loads(done.stdout.splitlines()[-1])["cpu_s"])
    plain, recorded = min(taken[False]), min(taken[True])
    return {
        "workers": workers,
        "samples_a_cpu_second": round(16_384 / plain),
        "us_a_sample": round(plain / 16_384 * 1e6, 2),
        "us_more_a_sample": round((recorded - plain) / 16_384 * 1e6, 3),
        "ratio": round(recorded / plain, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["audit", "loader", "epochs"])
    parser.add_argument("--samples", type=int, default=1_000_000)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=4)
    args = parser.parse_args()
    if args.what == "epochs":
        run_epochs(args.workers, epochs=8)
    else:
        found = audit(args.samples, args.ranks) if args.what == "audit" else loader(args.workers, args.rounds)
        print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
