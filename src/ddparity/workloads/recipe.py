"""A recipe, trained: on one device, under torchrun with DDP, or in one process with the arithmetic of N ranks.

    python -m ddparity.workloads.recipe FILE --batch 32
    torchrun --nproc-per-node 2 -m ddparity.workloads.recipe FILE --batch 32
    python -m ddparity.workloads.recipe FILE --batch 32 --as-ranks 2

The third is what the ranks' gradients should have been reduced to: each rank's slice of the batch in turn, with that
rank's random numbers and rank 0's buffers, its loss divided by the number of ranks as DDP divides gradients. With two
ranks it is bit-identical to DDP over gloo. A candidate that agrees with it and not with the full batch differs by
weighting or by a layer that couples samples; one that agrees with neither differs by communication.
"""

import argparse
import contextlib
import gc
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddparity._recipe import Recipe, load_recipe
from ddparity._slicing import cut


def train(recipe: Recipe, args: argparse.Namespace, rank: int, world: int) -> None:
    """Train a recipe for ``args.steps`` steps on this rank's slices of batches of ``args.batch`` samples."""
    torch.manual_seed(args.seed)
    net = recipe.model()
    model = DistributedDataParallel(net) if world > 1 else net
    optimizer = recipe.optimizer(net)
    torch.manual_seed(args.seed)
    for step in range(args.steps):
        whole = _batch(recipe, args.batch, args.seed + 1 + step)
        optimizer.zero_grad()
        if args.as_ranks > 1:
            loss = _as_ranks(recipe, net, whole, args.batch, args.as_ranks)
        else:
            share = args.batch // world
            mine = cut(whole, rank * share, (rank + 1) * share)
            loss = _micro_batches(recipe, model, mine, share, args.accum)
        optimizer.step()
        if rank == 0:
            print(f"step {step} loss {loss:.6f}", flush=True)


def _batch(recipe: Recipe, size: int, seed: int) -> Any:
    """Make a batch, the same on every rank; random numbers go on afterwards as if none had been drawn."""
    state = torch.get_rng_state()
    torch.manual_seed(seed)
    batch = recipe.batch(size)
    torch.set_rng_state(state)
    return batch


def _micro_batches(recipe: Recipe, model: nn.Module, batch: Any, size: int, accum: int) -> float:
    total, each = 0.0, size // accum
    for index in range(accum):
        last = index == accum - 1
        wait = model.no_sync() if isinstance(model, DistributedDataParallel) and not last else contextlib.nullcontext()
        with wait:
            loss = recipe.loss(model, cut(batch, index * each, (index + 1) * each)) / accum
            loss.backward()
        total += loss.item()
    return total


def _as_ranks(recipe: Recipe, net: nn.Module, batch: Any, size: int, num_ranks: int) -> float:
    """Run each rank's slice in turn: every rank begins with the same generator state and with rank 0's buffers."""
    generator = torch.get_rng_state()
    before = [buffer.clone() for buffer in net.buffers()]
    kept: list[torch.Tensor] = []
    total, each = 0.0, size // num_ranks
    for rank in range(num_ranks):
        torch.set_rng_state(generator)
        _restore(net, before)
        loss = recipe.loss(net, cut(batch, rank * each, (rank + 1) * each)) / num_ranks
        loss.backward()
        total += loss.item()
        if rank == 0:
            kept = [buffer.clone() for buffer in net.buffers()]
    _restore(net, kept)
    return total


def _restore(net: nn.Module, values: list[torch.Tensor]) -> None:
    with torch.no_grad():
        for buffer, value in zip(net.buffers(), values, strict=True):
            buffer.copy_(value)


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m ddparity.workloads.recipe", description=__doc__.split("\n")[0])
    parser.add_argument(
        "recipe", type=Path, help="Python file with model(), batch(n), loss(model, batch), optimizer(model)"
    )
    parser.add_argument("--batch", type=int, default=32, help="samples of the global batch, over all ranks")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--accum", type=int, default=1, help="micro-batches a rank and step")
    parser.add_argument("--as-ranks", type=int, default=1, help="ranks whose arithmetic one process repeats")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    world = int(os.environ.get("WORLD_SIZE", "1"))
    parts = max(world, args.as_ranks) * args.accum
    if args.batch % parts:
        parser.error(f"--batch {args.batch} cannot be cut into {parts} equal parts; {args.batch // parts * parts} can")
    if args.as_ranks > 1 and (world > 1 or args.accum > 1):
        parser.error("--as-ranks repeats the arithmetic of ranks in one process, without --accum")
    return args


def main(argv: list[str] | None = None) -> None:
    """Run one rank, or the only process there is."""
    args = parse(argv)
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    recipe = load_recipe(args.recipe)
    if world > 1:
        dist.init_process_group(timeout=timedelta(seconds=300))
    train(recipe, args, rank, world)
    if world > 1:
        dist.destroy_process_group()
        gc.collect()  # or gloo's threads may abort the interpreter at exit


if __name__ == "__main__":
    main()
