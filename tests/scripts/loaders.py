"""A small training that gets its data in many ways, right and wrong: ``loaders.py --kind KIND --fault FAULT``.

Kinds: map, workers, persistent, stream, folder (files on disk), hf (Hugging Face datasets), stateful (torchdata).
"""

import argparse
import os
import random
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, Subset, get_worker_info

NUM, FEATURES = 101, 8


def table(num=NUM):
    generator = torch.Generator().manual_seed(7)
    return torch.randn(num, FEATURES, generator=generator), torch.randint(0, 3, (num,), generator=generator)


class Items(Dataset):
    def __init__(self, noise=None):
        self.x, self.y = table()
        self.noise = noise

    def __len__(self):
        return NUM

    def __getitem__(self, i):
        x = self.x[i]
        if self.noise is not None:
            x = x + 0.01 * torch.from_numpy(self.noise.normal(size=FEATURES)).float()
        return x, self.y[i]


class Files(Dataset):
    """An image folder without torchvision: a file a sample, a folder a class."""

    def __init__(self, folder):
        self.paths = sorted(folder.glob("*/*.npy"))

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        return torch.from_numpy(np.load(self.paths[i])).float(), int(self.paths[i].parent.name)


class Stream(IterableDataset):
    def __init__(self, rank, world, by_worker=True):
        self.rank, self.world, self.by_worker = rank, world, by_worker
        self.x, self.y = table(96)

    def __iter__(self):
        info = get_worker_info()
        worker, num = (info.id, info.num_workers) if info and self.by_worker else (0, 1)
        for i in range(self.rank * num + worker, 96, self.world * num):
            yield self.x[i], self.y[i]


def dataset_of(args, rank, world):
    if args.kind == "stream":
        shard = (0, 1) if args.fault == "not_by_rank" else (rank, world)
        return Stream(*shard, by_worker=args.fault != "not_by_worker")
    if args.kind == "folder":
        return Files(Path(args.folder))
    if args.kind == "hf":
        from datasets import Dataset as HuggingFace

        x, y = table()
        return HuggingFace.from_dict({"x": x.tolist(), "y": y.tolist()}).with_format("torch")
    return Items(np.random.default_rng(0) if args.fault == "copied_noise" else None)


def loader_of(args, data, rank, world, *, batch):
    workers = 0 if args.kind in ("map", "folder", "hf") else 2
    more = {"num_workers": workers, "persistent_workers": args.kind == "persistent"}
    if args.kind == "stream":
        return DataLoader(data, batch_size=batch, **more), None
    if args.fault == "no_sampler":
        return DataLoader(
            data, batch_size=batch, shuffle=True, generator=torch.Generator().manual_seed(0), **more
        ), None
    seed = rank if args.fault == "seed_per_rank" else 0
    shuffle = not (args.fault == "one_shuffles" and rank)
    drop = args.fault == "drop_last"
    sampler = DistributedSampler(data, world, rank, shuffle=shuffle, seed=seed, drop_last=drop)
    if args.fault == "twice":
        sampler = DistributedSampler(data, 2 * world, rank, shuffle=shuffle)
    make = DataLoader
    if args.kind == "stateful":
        from torchdata.stateful_dataloader import StatefulDataLoader

        make = StatefulDataLoader
    return make(data, batch_size=batch, sampler=sampler, **more), sampler


def split(args, data, rank):
    """Return what is trained on and what is held out; without a generator each rank draws its own split."""
    if args.kind in ("stream", "hf") or not args.evaluate:
        return data, None
    seed = rank if args.fault == "split_per_rank" else 0
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed)).tolist()
    return Subset(data, order[:70]), Subset(data, order[70:])


def evaluate(args, model, held_out, rank, world):
    share = list(range(rank, len(held_out), world))
    if args.fault == "eval_padded":
        share = list(DistributedSampler(range(len(held_out)), world, rank, shuffle=False))
    model.eval()
    right = torch.zeros(2, dtype=torch.float64)
    with torch.no_grad():
        for x, y in DataLoader(Subset(held_out, share), batch_size=8, drop_last=args.fault == "eval_drop_last"):
            right += torch.tensor([(model(x).argmax(1) == y).sum(), len(y)])
    model.train()
    if args.fault == "one_share":
        return (right[0] / right[1]).item()
    if args.fault == "summed":
        value = right[0] / len(held_out) * world
        if world > 1:
            dist.all_reduce(value)
        return value.item()
    if world > 1:
        dist.all_reduce(right)
    accuracy = right[0] / right[1]
    return accuracy.item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--kind", default="map")
    parser.add_argument("--fault", default="none")
    parser.add_argument("--folder", default="")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--evaluate", action="store_true")
    args = parser.parse_args()
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    if world > 1:
        dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    torch.manual_seed(0)
    random.seed(0)
    data, held_out = split(args, dataset_of(args, rank, world), rank)
    loader, sampler = loader_of(args, data, rank, world, batch=24 // world)
    net = torch.nn.Linear(FEATURES, 3)
    model = DistributedDataParallel(net) if world > 1 else net
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for epoch in range(args.epochs):
        if sampler is not None and args.fault != "no_set_epoch":
            sampler.set_epoch(epoch)
        for batch in loader:
            x, y = (batch["x"], batch["y"]) if isinstance(batch, dict) else batch
            loss = torch.nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if held_out is not None:
            print("accuracy", evaluate(args, net, held_out, rank, world))
    if world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
