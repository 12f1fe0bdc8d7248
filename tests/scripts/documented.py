"""The ``train.py`` that the pages speak of: as small as they show it, on one device or under torchrun."""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=16)
parser.add_argument("--accum", type=int, default=1)
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--steps", type=int, default=30)
parser.add_argument("--save", type=Path, help="a folder to save into every ten steps, and to resume from")
parser.add_argument("--unreduced", action="store_true", help="the fault: gradients are never reduced")
args = parser.parse_args()

distributed = "RANK" in os.environ
if distributed:
    dist.init_process_group("gloo")
rank, world = (dist.get_rank(), dist.get_world_size()) if distributed else (0, 1)
torch.manual_seed(0)
data = TensorDataset(torch.randn(4096, 16), torch.randint(4, (4096,)))
sampler = DistributedSampler(data, world, rank, shuffle=False)
loader = DataLoader(data, args.batch_size, sampler=sampler)
net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
model = DistributedDataParallel(net) if distributed else net
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)

first = 0
if args.save is not None:
    args.save.mkdir(parents=True, exist_ok=True)
    if (args.save / "state.pt").exists():
        state = torch.load(args.save / "state.pt")
        net.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["step"]

batches = iter(loader)
for _ in range(first * args.accum):
    next(batches)
for step in range(first, args.steps):
    optimizer.zero_grad()
    for _ in range(args.accum):
        inputs, targets = next(batches)
        loss = F.cross_entropy((net if args.unreduced else model)(inputs), targets) / args.accum
        loss.backward()
    optimizer.step()
    if args.save is not None and (step + 1) % 10 == 0 and rank == 0:
        saved = {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}
        torch.save(saved, args.save / "new.pt")
        os.replace(args.save / "new.pt", args.save / "state.pt")
    if args.save is not None and distributed:
        dist.barrier()
print(f"rank {rank}: loss {loss.item():.4f} after {args.steps} steps")
if distributed:
    dist.destroy_process_group()
