"""A training on marked samples, with secrets on its command line: nothing of it may be in a bundle."""

import argparse
import gc
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

MARK = b"PatientFileMarkerZebraQuartz"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--api-key")
    parser.add_argument("--bug", action="store_true")
    args = parser.parse_args()
    world, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    if world > 1:
        dist.init_process_group("gloo")
    train(args.bug, world, rank)
    if world > 1:
        gc.collect()
        dist.destroy_process_group()
        gc.collect()


def train(bug: bool, world: int, rank: int) -> None:
    torch.manual_seed(0)
    text = torch.tensor(list(MARK), dtype=torch.float32) / 255
    x = text + torch.arange(32)[:, None] / 1000
    y = torch.arange(32) % 5
    net = nn.Sequential(nn.Linear(len(MARK), 8), nn.Tanh(), nn.Linear(8, 5))
    model = nn.parallel.DistributedDataParallel(net) if world > 1 else net
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(3):
        rows = slice(step * 8 + rank * (8 // world), step * 8 + (rank + 1) * (8 // world))
        loss = F.cross_entropy(model(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        if bug:
            net[2].weight.grad.mul_(2)
        optimizer.step()


if __name__ == "__main__":
    main()
