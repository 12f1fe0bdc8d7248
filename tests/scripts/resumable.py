"""A training that saves every two steps and resumes from what it saved: ``resumable.py --save DIR [--fault FAULT]``."""

import argparse
import os
import random
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Dropout(0.2), nn.Linear(16, 3))


def save(path, state, rank, world):
    random_states = torch.get_rng_state()
    states = [None] * world
    if world > 1:
        dist.all_gather_object(states, random_states)
    else:
        states = [random_states]
    if rank == 0:
        torch.save({**state, "random": states}, path.with_suffix(".part"))
        path.with_suffix(".part").rename(path)
    if world > 1:
        dist.barrier()


def load(path, args, net, optimizer, scheduler, scaler, rank):
    if not path.exists() or args.fault == "scratch":
        return 0, 0, None
    state = torch.load(path, weights_only=False)
    if args.fault == "no_buffers":
        keep = {name for name, _ in net.named_parameters()}
        net.load_state_dict({n: v for n, v in state["model"].items() if n in keep}, strict=False)
    else:
        net.load_state_dict(state["model"])
    if args.fault != "no_optimizer" and not (args.fault == "optimizer_rank0" and rank):
        optimizer.load_state_dict(state["optimizer"])
    if args.fault != "no_scheduler":
        scheduler.load_state_dict(state["scheduler"])
    if args.fault != "no_scaler":
        scaler.load_state_dict(state["scaler"])
    own = state["random"][0 if args.fault == "random_rank0" else rank]
    return state["epoch"], state["batch"], None if args.fault == "no_random" else own


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--save", required=True)
    parser.add_argument("--fault", default="none")
    args = parser.parse_args()
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    if world > 1:
        dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    generator = torch.Generator().manual_seed(7)
    data = TensorDataset(torch.randn(64, 8, generator=generator), torch.randint(0, 3, (64,), generator=generator))
    sampler = DistributedSampler(data, world, rank)
    net = model()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=3)
    random.seed(rank)
    torch.manual_seed(100 + rank)
    folder = Path(args.save)
    folder.mkdir(parents=True, exist_ok=True)
    first, done, states = load(folder / "last.pt", args, net, optimizer, scheduler, scaler, rank)
    wrapped = DistributedDataParallel(net) if world > 1 else net
    for epoch in range(first, 3):
        sampler.set_epoch(epoch)
        for batch, (x, y) in enumerate(DataLoader(data, batch_size=16 // world, sampler=sampler)):
            if batch < done and args.fault != "restart_epoch":
                continue
            if states is not None:  # after the loader has drawn its seed
                torch.set_rng_state(states)
                states = None
            loss = nn.functional.cross_entropy(wrapped(x), y)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()
            if batch % 2:
                state = {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
                state |= {"scheduler": scheduler.state_dict(), "scaler": scaler.state_dict(), "batch": batch + 1}
                save(folder / "last.pt", state, rank, world)
        done = 0
    if world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
