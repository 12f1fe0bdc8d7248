"""What writing down a collective costs, and what a trial of 1,000 small ones tells.

    python benchmarks/comm.py [--calls 1000] [--rounds 5] [--step] [--json]

Two gloo ranks make small all_reduces, in turns with the ledger and without it: in one process, group and recorded
group share their backend, and each round measures both, so that whatever else the machine does meets both alike. What
counts is the processor time of the calling thread; wall time of a small all_reduce on a busy machine is noise.

``--step`` trains the tiny GPT of ``overhead.py`` on the two ranks instead, by turns under DistributedDataParallel on
the recorded group and on the group beneath it: what the calls of a step add to the processor time of its process.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LIMIT_US = 15.0


def worker(calls: int, rounds: int) -> None:
    """Measure in this rank; rank 0 prints the rounds as JSON."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    recorded = dist.group.WORLD
    bare = recorded.inner
    tensor = torch.ones(16)
    found = []
    for number in range(rounds + 1):
        times = {}
        for name in ("bare", "recorded") if number % 2 else ("recorded", "bare"):
            group = recorded if name == "recorded" else bare
            dist.barrier()
            cpu, wall = time.thread_time(), time.perf_counter()
            for _ in range(calls):
                dist.all_reduce(tensor, group=group)
            times[name] = ((time.thread_time() - cpu) / calls, (time.perf_counter() - wall) / calls)
        if number:  # the first warms up
            found.append(times)
    if dist.get_rank() == 0:
        print("ROUNDS " + json.dumps(found), flush=True)
    dist.destroy_process_group()


def step_worker(rounds: int) -> None:
    """Train on the recorded group and on the one beneath it, in turns; rank 0 prints the steps as JSON."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from ddparity.workloads.tiny_gpt import Shape, TinyGPT, batch_of, train_step

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    recorded = dist.group.WORLD
    shape = Shape(num_layers=4, width=256, num_heads=4, vocab=1000, seq=128)
    trained = {}
    for name, group in (("recorded", recorded), ("bare", recorded.inner)):
        model = DistributedDataParallel(TinyGPT(shape), process_group=group)
        trained[name] = (model, torch.optim.AdamW(model.parameters(), lr=3e-4))
    found = []
    calls = 0
    for number in range(rounds + 2):
        times = {}
        for name in ("bare", "recorded") if number % 2 else ("recorded", "bare"):
            inputs, targets = batch_of(number, 8, shape, dist.get_rank())
            dist.barrier(group=recorded.inner)
            before, cpu, wall = recorded.num_calls, time.process_time(), time.perf_counter()
            train_step(*trained[name], inputs, targets)
            times[name] = (time.process_time() - cpu, time.perf_counter() - wall)
            calls = max(calls, recorded.num_calls - before)
        if number > 1:  # the first warm up
            found.append(times)
    if dist.get_rank() == 0:
        print(f"CALLS {calls}\nROUNDS {json.dumps(found)}", flush=True)
    dist.destroy_process_group()


def measure(calls: int, rounds: int, *, step: bool = False) -> dict[str, float]:
    """Run the two ranks, and return the medians in microseconds a call, or a step."""
    with tempfile.TemporaryDirectory() as folder:
        config = json.dumps({"trial_dir": str(Path(folder) / "trial"), "steps": "1"})
        env = {**os.environ, "OMP_NUM_THREADS": "1", "DDPARITY_CAPTURE": config}
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", __file__]
        command += ["--worker", "--calls", str(calls), "--rounds", str(rounds), *(["--step"] if step else [])]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    line = next((each for each in done.stdout.splitlines() if each.startswith("ROUNDS ")), None)
    if line is None:
        raise SystemExit(done.stderr)
    found = json.loads(line.removeprefix("ROUNDS "))
    made = [int(each.removeprefix("CALLS ")) for each in done.stdout.splitlines() if each.startswith("CALLS ")]
    cpu = {name: 1e6 * statistics.median(each[name][0] for each in found) for name in ("bare", "recorded")}
    wall = {name: 1e6 * statistics.median(each[name][1] for each in found) for name in ("bare", "recorded")}
    added = 1e6 * statistics.median(each["recorded"][0] - each["bare"][0] for each in found)
    return {
        "bare_cpu_us": cpu["bare"],
        "recorded_cpu_us": cpu["recorded"],
        "added_cpu_us": added,
        "bare_wall_us": wall["bare"],
        "recorded_wall_us": wall["recorded"],
        **({"calls_a_step": made[0], "added_percent": 100 * added / cpu["bare"]} if made else {"limit_us": LIMIT_US}),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--step", action="store_true", help="train instead, and measure a step")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        step_worker(args.rounds) if args.step else worker(args.calls, args.rounds)
        return
    found = measure(args.calls, args.rounds, step=args.step)
    if args.json:
        print(json.dumps(found, indent=2))
        return
    if args.step:
        print(f"a training step of the tiny GPT on 2 gloo ranks, median of {args.rounds} rounds")
    else:
        print(f"{args.calls} all_reduces of 16 numbers on 2 gloo ranks, median of {args.rounds} rounds")
    for name, value in found.items():
        print(f"  {name.replace('_', ' '):<18} {value:8.2f}")


if __name__ == "__main__":
    main()
