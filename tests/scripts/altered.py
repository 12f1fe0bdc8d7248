"""Trainings for the options of ``record`` that alter a run: promotion, moved inputs, dropout off, pinned samples."""

import argparse
import gc
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import ddparity


class Net(nn.Module):
    """Casts, masks and buffers of a narrower dtype, as real models have them."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.fc1 = nn.Linear(12, 16)
        self.norm = nn.LayerNorm(16)
        self.drop = nn.Dropout(dropout)
        self.out = nn.Linear(16, 3)
        self.register_buffer("mean", torch.full((12,), 0.1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gathered = torch.zeros(len(x), 16)  # float32, filled in place
        gathered[:] = self.norm(self.fc1(x - self.mean).float())
        hidden = self.drop(torch.relu(gathered)).to(torch.float32)
        weights = torch.softmax(hidden, dim=-1, dtype=torch.float32)
        return self.out(hidden * weights + torch.ones(16))


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.out = nn.Linear(8, 3)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.out(self.embed(tokens).mean(1))


def loss_of(net: nn.Module, x: torch.Tensor, y: torch.Tensor, kind: str) -> torch.Tensor:
    out = net(x)
    if kind == "mse":  # the target is float32
        return F.mse_loss(out, F.one_hot(y, 3).float())
    total = torch.zeros(())
    total += F.cross_entropy(out, y)
    return total


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--batch", type=int, default=12)
    parser.add_argument("--optimizer", default="sgd")
    parser.add_argument("--loss", default="ce")
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--tokens", action="store_true")
    parser.add_argument("--autocast", action="store_true")
    parser.add_argument("--feed", action="store_true")
    parser.add_argument("--wrap", default="ddp")
    parser.add_argument("--bug", default="")
    args = parser.parse_args()
    world = int(os.environ.get("WORLD_SIZE", "1"))
    rank = int(os.environ.get("RANK", "0"))
    if world > 1:
        dist.init_process_group("gloo")
    train(args, world, rank)
    if world > 1:
        dist.destroy_process_group()
        gc.collect()  # gloo is known to abort or hang where its last reference goes later


def train(args: argparse.Namespace, world: int, rank: int) -> None:
    torch.manual_seed(0)
    x = torch.rand(96, 12)
    if args.tokens:
        x = (x[:, :6] * 20).long()
    y = torch.arange(96) % 3
    net: nn.Module = Tokens() if args.tokens else Net(args.dropout)
    if world > 1 and args.wrap == "fsdp":
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        fully_shard(net, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
    model = nn.parallel.DistributedDataParallel(net) if world > 1 and args.wrap == "ddp" else net
    kinds = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}
    optimizer = kinds[args.optimizer](model.parameters(), lr=0.05)
    torch.manual_seed(100 + rank)  # what follows is each rank's own, as in many scripts
    sampler = DistributedSampler(range(96), world, rank, seed=world) if world > 1 else None
    loader = DataLoader(TensorDataset(x, y), args.batch, shuffle=sampler is None, sampler=sampler)
    steps = 0
    while steps < args.steps:
        for xb, yb in loader:
            if args.feed:
                start = int(torch.randint(96 - args.batch, ()))
                xb, yb = ddparity.feed((x[start : start + args.batch], y[start : start + args.batch]))
            with torch.autocast("cpu", torch.bfloat16, enabled=args.autocast):
                loss = loss_of(model, xb, yb, args.loss)
            optimizer.zero_grad()
            loss.backward()
            if args.bug == "scale":
                net.out.weight.grad *= 1.0 + 1e-9
            optimizer.step()
            steps += 1
            if steps == args.steps:
                break
    print("last loss", loss.dtype, loss.item())


if __name__ == "__main__":
    main()
