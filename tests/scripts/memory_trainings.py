"""Trainings of many habits for ``ddparity memory -- memory_trainings.py KIND``; --measure prints the real peak instead.

loader     a DataLoader with workers and dictionaries of tensors, a validation before the first step
accumulate batches cut out of a file by hand, micro-batches, autocast, a gradient scaler, clipping
cuda       asks for a CUDA device everywhere, compiles, saves checkpoints, writes a log
decides    skips a step whose loss is not finite, and packs sequences to the longest length
masked     picks the elements of a loss by a mask: no fake tensor can do that
gan        two models and two optimizers
ddp, fsdp  wraps its model where it is launched in several processes
plain      no module at all
"""

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from memory_peak import most_of
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WIDTH, SEQ, VOCAB = 128, 64, 512


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)) for _ in range(3)
        )
        self.register_buffer("scale", torch.ones(WIDTH))
        self.head = nn.Linear(WIDTH, VOCAB)

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        x = self.embed(tokens) * self.scale
        for block in self.blocks:
            x = x + block(x)
        logits = self.head(x)
        return logits if labels is None else (logits, F.cross_entropy(logits.flatten(0, 1), labels.flatten()))


class Pairs(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 2048

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        drawn = torch.randint(VOCAB, (SEQ + 1,), generator=torch.Generator().manual_seed(index))
        return {"tokens": drawn[:-1], "labels": drawn[1:]}


def loader(args: argparse.Namespace) -> None:
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    workers = 0 if args.measure else 2
    batches = torch.utils.data.DataLoader(Pairs(), batch_size=args.batch, shuffle=True, num_workers=workers)
    net.eval()
    with torch.no_grad():
        net(**next(iter(batches)))
    net.train()
    for step, batch in enumerate(batches):
        _, loss = net(**batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss:.4f} {loss.item():.3f}")
        if step + 1 == args.steps:
            break


def accumulate(args: argparse.Namespace) -> None:
    data = torch.randint(VOCAB, (20_000,))

    def get_batch() -> tuple[torch.Tensor, torch.Tensor]:
        starts = torch.randint(len(data) - SEQ, (args.batch,))
        x = torch.stack([data[i : i + SEQ] for i in starts])
        return x, torch.stack([data[i + 1 : i + 1 + SEQ] for i in starts])

    net = Net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu")
    x, y = get_batch()
    for _ in range(args.steps):
        for _ in range(3):
            with torch.autocast("cpu", torch.bfloat16):
                _, loss = net(x, y)
            x, y = get_batch()
            scaler.scale(loss / 3).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)


def cuda(args: argparse.Namespace) -> None:
    if not args.measure:
        assert torch.cuda.is_available()
        torch.cuda.set_device(0)
    device = "cpu" if args.measure else "cuda"
    net = Net().to(device) if args.measure else torch.compile(Net().cuda())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for step in range(args.steps):
        tokens = torch.randint(VOCAB, (args.batch, SEQ), device=device)
        loss = net(tokens, tokens.to(device, non_blocking=True))[1]
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if args.out is not None:
            torch.save(net.state_dict(), args.out / "last.pt")
            (args.out / "log.txt").write_text(f"{step}")
            (args.out / "old.txt").unlink()


def decides(args: argparse.Namespace) -> None:
    net = nn.LSTM(WIDTH, WIDTH, batch_first=True)
    embed = nn.Embedding(VOCAB, WIDTH)
    optimizer = torch.optim.Adam([*net.parameters(), *embed.parameters()])
    for _ in range(args.steps):
        tokens = torch.randint(1, VOCAB, (args.batch, SEQ))
        tokens[:, 48:] = 0
        longest = int((tokens != 0).sum(1).max())
        loss = net(embed(tokens)[:, :longest])[0].square().mean()
        if not torch.isfinite(loss):
            raise RuntimeError("the loss is not finite")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def masked(args: argparse.Namespace) -> None:
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(args.steps):
        tokens = torch.randint(VOCAB, (args.batch, SEQ))
        mask = tokens % 4 != 0
        loss = F.cross_entropy(net(tokens)[mask], tokens[mask])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def gan(args: argparse.Namespace) -> None:
    maker, critic = nn.Sequential(nn.Linear(32, 512), nn.ReLU(), nn.Linear(512, 784)), nn.Linear(784, 1)
    makers, critics = torch.optim.Adam(maker.parameters()), torch.optim.Adam(critic.parameters())
    for _ in range(args.steps):
        real, noise = torch.randn(args.batch, 784), torch.randn(args.batch, 32)
        critics.zero_grad()
        (critic(maker(noise).detach()).mean() - critic(real).mean()).backward()
        critics.step()
        makers.zero_grad()
        (-critic(maker(noise)).mean()).backward()
        makers.step()


def ranks(args: argparse.Namespace) -> None:
    launched = "RANK" in os.environ
    if launched:
        dist.init_process_group("gloo" if args.measure else "nccl")
    net = model = Net()
    if launched and args.kind == "ddp":
        model = DistributedDataParallel(net)
    elif launched:
        from torch.distributed.fsdp import fully_shard

        for block in net.blocks:
            fully_shard(block)
        fully_shard(net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    for _ in range(args.steps):
        tokens = torch.randint(VOCAB, (args.batch, SEQ))
        loss = model(tokens, tokens)[1]
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    if launched:
        dist.destroy_process_group()


def plain(args: argparse.Namespace) -> None:
    weight = torch.randn(8, 8, requires_grad=True)
    for _ in range(args.steps):
        (torch.randn(args.batch, 8) @ weight).square().mean().backward()


@contextlib.contextmanager
def measured(wanted: bool) -> Iterator[None]:
    if not wanted:
        yield
        return
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiled:
        yield
    print("peak", most_of(profiled))


def main() -> None:
    kinds = {each.__name__: each for each in (loader, accumulate, cuda, decides, masked, gan, plain)}
    kinds |= {"ddp": ranks, "fsdp": ranks}
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=kinds)
    parser.add_argument("--batch", type=int, default=6)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.manual_seed(0)
    with measured(args.measure):
        kinds[args.kind](args)


if __name__ == "__main__":
    sys.exit(main())
