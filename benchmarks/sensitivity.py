"""Sensitivity: the smallest uniform relative change of one gradient that is found, by dtype; one masked token of 512.

    python benchmarks/sensitivity.py [--json]

The training is a GPT of 2 layers and width 64 on 8 sequences of 64 tokens, under DDP with gloo on two ranks, held
against one device. The candidate multiplies the gradient of one weight by 1 + d before the optimizer steps; the
smallest d of 1, 3, 10, 30, ... that is found at step 0, under the name of that weight, is looked for by bisection.
Float64 is ``record --dtype float64`` of the same script. The other question is whether one token of 512 that one rank
leaves out of its loss is found.
"""

import argparse
import gc
import json
import os
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

from ddparity.judge import Status, compare_trials
from ddparity.trials import RecordSpec, Store, record
from ddparity.workloads.tiny_gpt import Shape, TinyGPT

NAME = "blocks.0.up.weight"
GRID = [m * 10.0**e for e in range(-15, 0) for m in (1.0, 3.0)]
KINDS = {"float32": {}, "float64": {"dtype": "float64"}, "bfloat16 (autocast)": {}}


def train(args: argparse.Namespace) -> None:
    world, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    if world > 1:
        dist.init_process_group("gloo")
    _steps(args, rank, world)
    if world > 1:
        dist.destroy_process_group()
        gc.collect()


def _steps(args: argparse.Namespace, rank: int, world: int) -> None:
    torch.manual_seed(0)
    net = TinyGPT(Shape(num_layers=2, width=64, num_heads=4, vocab=64, seq=64))
    model = DistributedDataParallel(net) if world > 1 else net
    weight = dict(net.named_parameters())[args.name] if args.change else None
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for _ in range(2):
        tokens = torch.randint(64, (8, 65))[rank::world]
        targets = tokens[:, 1:].clone()
        if args.mask and rank == world - 1:
            targets[0, 5] = -100
        with torch.autocast("cpu", torch.bfloat16, enabled=args.autocast):
            logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        if weight is not None:
            weight.grad *= 1.0 + args.change
        optimizer.step()


class Bench:
    """Records trials of this file as they are asked for."""

    def __init__(self, store: Store, name: str) -> None:
        self._store, self.name = store, name
        self._num = 0

    def record(self, kind: str, ranks: int, *flags: str) -> Path:
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks > 1 else []
        more = ["--autocast"] if "autocast" in kind else []
        self._num += 1
        facts = record(
            RecordSpec(
                command=["env", "OMP_NUM_THREADS=1", sys.executable, *launcher, __file__, "--train", *more, *flags],
                store=self._store, name=f"s{self._num}", prove=False, steps="1", timeout_s=120, quiet=True,
                **KINDS[kind],
            )
        )  # fmt: skip
        if facts.exit_code:
            raise SystemExit((self._store.path(facts.id) / "private" / "output.log").read_text())
        return self._store.path(facts.id)

    def first(self, control: Path, candidate: Path) -> tuple[str, str | None]:
        verdict = compare_trials(control, candidate)
        numbers, first = verdict.layers["numerics"], verdict.first("numerics")
        found = numbers.status is Status.DEVIATES and first is not None
        return numbers.status.value, f"{first.phase} {first.name}" if found and first is not None else None

    def smallest(self, kind: str, control: Path) -> float | None:
        """Return the smallest change that is found, by bisection over the grid."""
        low, high = -1, len(GRID)
        while high - low > 1:
            middle = (low + high) // 2
            _, found = self.first(control, self.record(kind, 2, "--change", repr(GRID[middle]), "--name", self.name))
            low, high = (low, middle) if found is not None and found.endswith(self.name) else (middle, high)
        return GRID[high] if high < len(GRID) else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--train", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--change", type=float, default=0.0, help=argparse.SUPPRESS)
    parser.add_argument("--name", default=NAME, help="the weight whose gradient is changed")
    parser.add_argument("--mask", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--autocast", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.train:
        train(args)
        return
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Store(Path(folder)), args.name)
        for kind in KINDS:
            control = bench.record(kind, 1)
            healthy, _ = bench.first(control, bench.record(kind, 2))
            status, masked = bench.first(control, bench.record(kind, 2, "--mask"))
            rows.append({
                "dtype": kind, "healthy": healthy, "smallest_change": bench.smallest(kind, control),
                "masked_token": masked or status,
            })  # fmt: skip
            if not args.json:
                print(rows[-1], flush=True)
    if args.json:
        print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
