"""A classifier of handwritten digits: a real small training, alone or data parallel.

    python -m ddparity.workloads.digits
    torchrun --nproc-per-node 2 -m ddparity.workloads.digits [--fault NAME] [--accum K]

Every rank takes its slice of the same global batch, so the run on one device and the run on several
train on the same samples; ``--accum`` cuts a rank's slice into micro-batches. Under torchrun the model is wrapped in
DDP, also at one process. ``--fault`` plants a mistake that people really make (see ``FAULTS``).
"""

import argparse
import contextlib
import copy
import gc
import math
import os
import statistics
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

try:
    from ddparity import feed, log_metric
except ImportError:  # the script runs as well where ddparity is not installed

    def feed(batch: Any) -> Any:
        """Return ``batch``."""
        return batch

    def log_metric(name: str, value: float, step: int | None = None) -> float:
        """Return ``value``."""
        return value


FAULTS = {
    "none": "nothing is wrong",
    "unseeded": "the model is built from another seed in every run",
    "accum-sum": "the losses of micro-batches are added up and not divided by their number",
    "stale-optimizer": "the optimizer holds a copy of the model that was made before the model was wrapped in DDP",
    "unsynced": "fc2.weight stands in DDP's ignore list: its gradient is never averaged over the ranks",
    "summed": "a communication hook adds the gradients up and forgets to divide by the world size",
    "double-divide": "the loss is divided by the world size although DDP averages already",
    "pairs": "gradients are averaged within pairs of ranks only, which shows from four ranks on",
}
NUM_TEST = 297
"""Samples kept back for the accuracy, of the 1,797."""


class Classifier(nn.Module):
    """Three linear layers: 64 pixels -> 10 classes."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.fc1 = nn.Linear(64, width)
        self.fc2 = nn.Linear(width, width)
        self.head = nn.Linear(width, 10)

    def forward(self, pixels: Tensor) -> Tensor:
        """Return the logits, (batch, 10), of ``pixels``, (batch, 64) within 0 and 1."""
        return self.head(F.relu(self.fc2(F.relu(self.fc1(pixels)))))


def load() -> tuple[Tensor, Tensor]:
    """Return pixels, (1797, 64) within 0 and 1, and classes, (1797,), of scikit-learn's handwritten digits.

    Raises:
        SystemExit: scikit-learn is not installed.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise SystemExit(
            "the digits come with scikit-learn, which is not installed here: pip install 'ddparity[demo]'"
        ) from None
    data: Any = load_digits()
    return torch.tensor(data.data / 16.0, dtype=torch.get_default_dtype()), torch.tensor(data.target)


def batches(num_samples: int, batch_size: int, steps: int, seed: int) -> Iterator[Tensor]:
    """Yield the sample indices of each step's global batch: the same on every rank and at every world size."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.empty(0, dtype=torch.long)
    for _ in range(steps):
        while len(order) < batch_size:
            order = torch.cat([order, torch.randperm(num_samples, generator=generator)])
        yield order[:batch_size]
        order = order[batch_size:]


def wrap(net: Classifier, fault: str) -> DistributedDataParallel:
    """Wrap ``net`` in DDP, with the planted fault if it is one of the wrapper."""
    if fault == "unsynced":
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(net, ["fc2.weight"])
    model = DistributedDataParallel(net)
    if fault == "summed":
        model.register_comm_hook(None, _sum_hook)
    if fault == "pairs":
        model.register_comm_hook(_pair_of_this_rank(), _pair_hook)
    return model


def _sum_hook(_state: object, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    """Reduce a bucket by adding it up, without the division that DDP's own reduction makes."""
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    assert work is not None
    return work.get_future().then(_first)


def _pair_of_this_rank() -> Any:
    """Return the group of ranks 2k and 2k + 1 that this rank belongs to; every rank makes every group."""
    world = dist.get_world_size()
    groups = [dist.new_group([rank, rank + 1][: world - rank]) for rank in range(0, world, 2)]
    return groups[dist.get_rank() // 2]


def _pair_hook(pair: Any, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    """Average a bucket over two ranks, whatever the world size is."""
    work = dist.all_reduce(bucket.buffer().div_(dist.get_world_size(pair)), group=pair, async_op=True)
    assert work is not None
    return work.get_future().then(_first)


def _first(done: torch.futures.Future[list[Tensor]]) -> Tensor:
    return done.value()[0]


def mean_over_ranks(loss: Tensor) -> float:
    """Return the mean of every rank's loss."""
    loss = loss.detach().clone()
    if dist.is_initialized():
        dist.all_reduce(loss)
        loss /= dist.get_world_size()
    return loss.item()


def backward(model: nn.Module, samples: tuple[Tensor, Tensor], args: argparse.Namespace, world: int) -> Tensor:
    """Run forward and backward over this rank's samples in ``args.accum`` micro-batches; return their mean loss."""
    parts = list(zip(*(each.chunk(args.accum) for each in samples), strict=True))
    divisor = (1 if args.fault == "accum-sum" else len(parts)) * (world if args.fault == "double-divide" else 1)
    losses = []
    for number, (pixels, classes) in enumerate(parts, start=1):
        last = number == len(parts)
        with contextlib.nullcontext() if last or not isinstance(model, DistributedDataParallel) else model.no_sync():
            loss = F.cross_entropy(model(pixels), classes)
            (loss / divisor if divisor > 1 else loss).backward()
        losses.append(loss.detach())
    return torch.stack(losses).mean()


def train(args: argparse.Namespace, rank: int, world: int) -> None:
    """Train step by step and print the loss of each, then the accuracy on what was kept back.

    Logged are ``epoch_1_loss`` (the mean over the epoch's steps) and so on, and ``final_accuracy``.
    """
    torch.manual_seed(torch.seed() % 2**31 if args.fault == "unseeded" else args.seed)
    pixels, classes = load()
    net = Classifier(args.width)
    stale = copy.deepcopy(net)
    model = wrap(net, args.fault) if dist.is_initialized() else net
    held = stale if args.fault == "stale-optimizer" and model is not net else net
    optimizer = torch.optim.SGD(held.parameters(), lr=args.lr, momentum=0.9)
    num_train = len(pixels) - NUM_TEST
    epoch_steps = math.ceil(num_train / args.batch_size)
    num_steps = args.steps if args.epochs is None else args.epochs * epoch_steps
    first = resume(args.checkpoint, net, optimizer)
    losses: list[float] = []
    for step, index in enumerate(batches(num_train, args.batch_size, num_steps, args.seed)):
        if step < first:
            continue
        mine = index[rank::world]
        model.zero_grad()
        loss = backward(model, feed((pixels[mine], classes[mine])), args, world)
        optimizer.step()
        losses.append(mean_over_ranks(loss))
        if rank == 0:
            print(f"step {step} loss {losses[-1]:.6f}", flush=True)
        epoch, left = divmod(step + 1, epoch_steps)
        if rank == 0 and left == 0:
            log_metric(f"epoch_{epoch}_loss", statistics.fmean(losses), step=epoch)
            losses.clear()
            save(args.checkpoint, net, optimizer, step + 1)
    if rank == 0:
        with torch.no_grad():
            hits = net(pixels[num_train:]).argmax(-1) == classes[num_train:]
        accuracy = log_metric("final_accuracy", hits.double().mean().item())
        print(f"accuracy {accuracy:.4f} on {NUM_TEST} samples", flush=True)


def save(path: Path | None, net: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    """Write a checkpoint so that a reader sees the old one or the new one."""
    if path is not None:
        temporary = path.with_suffix(".tmp")
        torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict(), "steps": steps}, temporary)
        temporary.replace(path)


def resume(path: Path | None, net: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Take up the checkpoint, if there is one; return how many steps are done."""
    if path is None or not path.exists():
        return 0
    state = torch.load(path, weights_only=True)
    net.load_state_dict(state["net"])
    optimizer.load_state_dict(state["optimizer"])
    return state["steps"]


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m ddparity.workloads.digits", description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--epochs", type=int, help="train for so many epochs, in place of --steps")
    parser.add_argument("--checkpoint", type=Path, help="file to write after every epoch, and to resume from")
    parser.add_argument("--batch-size", type=int, default=64, help="samples of the global batch, over all ranks")
    parser.add_argument("--accum", type=int, default=1, help="micro-batches that a rank's samples are cut into")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dtype", default="float32", choices=["float32", "float64"])
    faults = "; ".join(f"{name}: {text}" for name, text in FAULTS.items())
    parser.add_argument("--fault", default="none", choices=list(FAULTS), help=faults)
    args = parser.parse_args(argv)
    if args.checkpoint is None and (folder := os.environ.get("DDPARITY_CHECKPOINT_DIR")):
        args.checkpoint = Path(folder) / "digits.pt"
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if args.batch_size % world:
        parser.error(f"--batch-size {args.batch_size} cannot be shared evenly by {world} ranks")
    if args.accum < 1 or args.batch_size // world % args.accum:
        parser.error(f"{args.batch_size // world} samples a rank cannot be cut evenly into {args.accum} micro-batches")
    return args


def main(argv: list[str] | None = None) -> None:
    """Run one rank, or the only process there is."""
    args = parse(argv)
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    torch.set_default_dtype(getattr(torch, args.dtype))
    launched = "RANK" in os.environ
    if launched:
        dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    train(args, rank, world)
    if launched:
        dist.destroy_process_group()
        gc.collect()  # or gloo's threads may abort the interpreter at exit


if __name__ == "__main__":
    main()
