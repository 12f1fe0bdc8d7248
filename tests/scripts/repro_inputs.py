"""A small training on data of its own that stands in a file: what ``ddparity repro`` has to do without.

    python repro_inputs.py DATA [--way loader|feed|array|own] [--bug double|outlier]

DATA is an archive of numpy: tokens padded with 0 behind, targets padded with -100, weights, and a note a sample.
"""

import argparse
import os
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

import ddparity

HUB_TOKEN = "Zq81mWv7Rk20Tx95Lp"
NOTES = "/home/quentinmarlowe/secret-project-nightingale/notes.txt"
GLOBAL = 8


class Notes(Dataset):
    """One patient an item."""

    def __init__(self, path: str) -> None:
        with open(path, "rb") as file:
            found = np.load(file)
            self.rows = {name: found[name] for name in ("input_ids", "labels", "weights")}

    def __len__(self) -> int:
        return len(self.rows["weights"])

    def __getitem__(self, index: int) -> dict:
        return {name: torch.from_numpy(np.array(rows[index])) for name, rows in self.rows.items()}


class Net(nn.Module):
    """Embedding and two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(40, 16)
        self.fc = nn.Linear(16, 16)
        self.head = nn.Linear(16, 40)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.fc(self.emb(input_ids))))


def by_loader(path: str, rank: int, world: int, num_steps: int):
    dataset = Notes(path)
    sampler = DistributedSampler(dataset, world, rank, shuffle=False) if world > 1 else None
    yield from DataLoader(dataset, batch_size=GLOBAL // world, sampler=sampler, shuffle=False)


def by_hand(path: str, rank: int, world: int, num_steps: int, feed: bool):
    archive = np.load(path)
    rows = {name: torch.from_numpy(archive[name]) for name in ("input_ids", "labels", "weights")}
    for step in range(num_steps):
        whole = {name: found[step * GLOBAL : (step + 1) * GLOBAL] for name, found in rows.items()}
        mine = {name: found.chunk(world)[rank] for name, found in whole.items()}
        yield ddparity.feed(mine) if feed else mine


def by_itself(rank: int, world: int, num_steps: int):
    for step in range(num_steps):
        generator = torch.Generator().manual_seed(step)
        tokens = torch.randint(0, 40, (GLOBAL, 6), generator=generator)
        yield {"input_ids": tokens.chunk(world)[rank], "labels": tokens.roll(-1, 1).chunk(world)[rank], "weights": 1.0}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--way", default="loader")
    parser.add_argument("--bug", default="none")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--hub-token", default="")
    args = parser.parse_args()
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if world > 1:
        dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    torch.manual_seed(0)
    net = Net()
    model = DistributedDataParallel(net) if world > 1 else net
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    if args.way == "loader":
        batches = by_loader(args.data, rank, world, args.steps)
    elif args.way == "own":
        batches = by_itself(rank, world, args.steps)
    else:
        batches = by_hand(args.data, rank, world, args.steps, feed=args.way == "feed")
    for _, batch in zip(range(args.steps), batches, strict=False):
        logits = model(batch["input_ids"]).flatten(0, 1)
        each = F.cross_entropy(logits, batch["labels"].flatten(), ignore_index=-100, reduction="none")
        loss = each.view(len(batch["input_ids"]), -1).mean(1).mul(batch["weights"]).mean()
        if args.bug == "double":
            loss = loss / world
        if args.bug == "half":
            loss = loss / 2
        if args.bug == "outlier" and world > 1 and (batch["input_ids"] == 39).sum() > 4:
            loss = loss * 2  # shows where a certain sample is
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
