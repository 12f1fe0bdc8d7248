"""Trains small models one after the other and prints a digest of all that training changed: run recorded and not."""

import hashlib
import json
import os
import random
import sys
from collections.abc import Callable

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

STEPS = 3


class Conv(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.norm = nn.BatchNorm2d(8)
        self.act = nn.ReLU(inplace=True)
        self.drop = nn.Dropout(0.3)
        self.head = nn.Linear(8 * 36, 5)

    def forward(self, x):
        return self.head(self.drop(self.act(self.norm(self.conv(x)))).flatten(1))


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 2, dropout=0.1, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(0.1))

    def forward(self, x):
        y = self.norm1(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    def __init__(self, reentrant: bool | None) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.tokens, self.positions = nn.Embedding(32, 16), nn.Embedding(8, 16)
        self.blocks = nn.ModuleList(Block(16) for _ in range(2))
        self.head = nn.Linear(16, 32, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, x):
        h = self.tokens(x) + self.positions(torch.arange(x.shape[1]))
        for block in self.blocks:
            if self.reentrant is None:
                h = block(h)
            else:
                h = checkpoint(block, h, use_reentrant=self.reentrant)
        return self.head(h).flatten(0, 1)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 5))


def images(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(n, 3, 8, 8), torch.randint(0, 5, (n,))


def vectors(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(n, 12), torch.randint(0, 5, (n,))


def sentences(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randint(0, 32, (n, 8)), torch.randint(0, 32, (n, 8)).flatten()


def compiled_with(**options) -> Callable[[nn.Module], nn.Module]:
    return lambda model: torch.compile(model, **options)


def compiled_in_place(model: nn.Module) -> nn.Module:
    model.compile(backend="aot_eager")
    return model


class Breaking(nn.Module):
    """A graph break in the middle: what follows it is entered from the eager frame."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(12, 16), nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 5))

    def forward(self, x):
        h = self.first(x)
        torch._dynamo.graph_break()
        return self.second(h)


MODELS: dict[str, tuple[Callable, Callable, Callable | None]] = {
    "mlp": (mlp, vectors, None),
    "cnn": (Conv, images, None),
    "transformer": (lambda: Transformer(None), sentences, None),
    "checkpoint": (lambda: Transformer(False), sentences, None),
    "reentrant": (lambda: Transformer(True), sentences, None),
    "breaking": (Breaking, vectors, compiled_with(backend="aot_eager")),
    "in_place": (Breaking, vectors, compiled_in_place),
    "compiled": (mlp, vectors, compiled_with()),
}


def train(name: str) -> dict:
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    build, batch, change = MODELS[name]
    plain = build()
    model = change(plain) if change else plain
    if dist.is_initialized():
        model = DistributedDataParallel(model)
        torch.manual_seed(100 + dist.get_rank())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(STEPS):
        for _ in range(2):
            x, y = batch(4)
            loss = F.cross_entropy(model(x), y)
            (loss / 2).backward()
            losses.append(loss.item())
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    digest = hashlib.sha256()
    for tensor in [*plain.parameters(), *plain.buffers(), torch.get_rng_state()]:
        digest.update(tensor.detach().numpy().tobytes())
    digest.update(repr(random.getstate()).encode() + np.random.get_state()[1].tobytes())
    digest.update(repr(losses).encode())
    counters = torch._dynamo.utils.counters
    return {
        "collectives": dist.group.WORLD._get_sequence_number_for_group() if dist.is_initialized() else 0,
        "digest": digest.hexdigest(),
        "graph_breaks": sum(counters["graph_break"].values()),
        "graphs": counters["stats"]["unique_graphs"],
    }


def main() -> None:
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    results = {name: train(name) for name in sys.argv[1:]}
    sys.stdout.write(f"RESULT {os.environ.get('RANK', 0)} {json.dumps(results)}\n")
    sys.stdout.flush()
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
