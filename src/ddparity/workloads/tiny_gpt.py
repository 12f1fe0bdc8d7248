"""A tiny GPT on random tokens: the training that benchmarks measure, alone or data parallel.

    python -m ddparity.workloads.tiny_gpt --steps 20
    torchrun --nproc-per-node 2 -m ddparity.workloads.tiny_gpt --steps 20

Pre-norm blocks after Radford et al. (2019), learned positions, no dropout. Every rank takes its slice
of the same global batch; the tokens come from a seeded generator and depend on the step alone.
"""

import argparse
import gc
import os
import time
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The model's sizes; the defaults are those of the published overhead figures."""

    num_layers: int = 4
    width: int = 256
    num_heads: int = 4
    vocab: int = 512
    seq: int = 128


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.num_heads = shape.num_heads
        self.qkv = nn.Linear(shape.width, 3 * shape.width)
        self.out = nn.Linear(shape.width, shape.width)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``x``, (batch, seq, width), to the same shape."""
        batch, seq, width = x.shape
        q, k, v = self.qkv(x).view(batch, seq, 3, self.num_heads, width // self.num_heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, seq, width))


class Block(nn.Module):
    """Attention and a two-layer perceptron, each behind a norm and beside a shortcut."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(shape.width)
        self.attention = Attention(shape)
        self.norm2 = nn.LayerNorm(shape.width)
        self.up = nn.Linear(shape.width, 4 * shape.width)
        self.down = nn.Linear(4 * shape.width, shape.width)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``x``, (batch, seq, width), to the same shape."""
        x = x + self.attention(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class TinyGPT(nn.Module):
    """Token and position embeddings, blocks, a norm, a head."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.tokens = nn.Embedding(shape.vocab, shape.width)
        self.positions = nn.Embedding(shape.seq, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.num_layers))
        self.norm = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.vocab, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits, (batch, seq, vocab), of ``tokens``, (batch, seq) integers."""
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def batch_of(step: int, batch_size: int, shape: Shape, seed: int) -> tuple[Tensor, Tensor]:
    """Return inputs and targets, both (batch_size, seq) integers, of the global batch of ``step``."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
    drawn = torch.randint(shape.vocab, (batch_size, shape.seq + 1), generator=generator)
    return drawn[:, :-1].contiguous(), drawn[:, 1:].contiguous()


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, inputs: Tensor, targets: Tensor) -> Tensor:
    """Make one training step and return the loss of this rank's samples."""
    loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


def train(args: argparse.Namespace, rank: int, world: int) -> None:
    """Train for ``args.steps`` steps and print loss and seconds of each, then the median of the seconds."""
    torch.manual_seed(args.seed)
    shape = Shape(num_layers=args.layers, width=args.width, num_heads=args.heads, vocab=args.vocab, seq=args.seq)
    net = TinyGPT(shape).to(args.device)
    model = DistributedDataParallel(net) if world > 1 else net
    optimizer = torch.optim.AdamW(net.parameters(), lr=args.lr)
    seconds = []
    for step in range(args.steps):
        inputs, targets = (t[rank::world].to(args.device) for t in batch_of(step, args.batch, shape, args.seed))
        start = time.perf_counter()
        loss = train_step(model, optimizer, inputs, targets).item()
        seconds.append(time.perf_counter() - start)
        if rank == 0:
            print(f"step {step} loss {loss:.6f} seconds {seconds[-1]:.4f}", flush=True)
    if rank == 0 and seconds:
        # The first steps pay for allocations and, under a recorder, for what is recorded.
        print(f"median {sorted(seconds)[len(seconds) // 2]:.4f} seconds a step", flush=True)


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m ddparity.workloads.tiny_gpt", description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=8, help="sequences of the global batch, over all ranks")
    parser.add_argument("--seq", type=int, default=128, help="tokens of a sequence")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--vocab", type=int, default=512)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=0, help="threads of one operation; 0 leaves PyTorch's choice")
    parser.add_argument("--dtype", default="float32", choices=["float32", "float64", "bfloat16"])
    parser.add_argument("--device", default="cpu", help="cpu, or cuda for the card of the local rank")
    args = parser.parse_args(argv)
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if args.batch % world:
        parser.error(f"--batch {args.batch} cannot be shared evenly by {world} ranks")
    if args.width % args.heads:
        parser.error(f"--width {args.width} is not a multiple of --heads {args.heads}")
    return args


def main(argv: list[str] | None = None) -> None:
    """Run one rank, or the only process there is."""
    args = parse(argv)
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if args.threads:
        torch.set_num_threads(args.threads)
    torch.set_default_dtype(getattr(torch, args.dtype))
    if args.device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    if world > 1:
        dist.init_process_group("nccl" if args.device == "cuda" else "gloo", timeout=timedelta(seconds=60))
    train(args, rank, world)
    if world > 1:
        dist.destroy_process_group()
        gc.collect()  # or gloo's threads may abort the interpreter at exit


if __name__ == "__main__":
    main()
