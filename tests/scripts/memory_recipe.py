"""A recipe: a GPT in blocks, large enough that its tensors outweigh everything else that is allocated."""

import os
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

AUTOCAST, SAVING, LOOK = (os.environ.get(f"RECIPE_{name}") == "1" for name in ("AUTOCAST", "SAVING", "LOOK"))


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, seq, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, seq, 3, 4, width // 4).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, seq, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    def __init__(self, width: int = 192, vocab: int = 1024, seq: int = 96) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocab, width), nn.Embedding(seq, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(4))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocab, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if SAVING else block(x)
        return self.head(self.norm(x))


def model() -> nn.Module:
    return Gpt()


def batch(n: int, seq: int = 96) -> Any:
    return torch.randint(1024, (n, seq)), torch.randint(1024, (n, seq))


def loss(model: nn.Module, batch: Any) -> torch.Tensor:
    if LOOK and int(batch[0].max()) < 0:
        raise ValueError("no tokens")
    with torch.autocast("cpu", torch.bfloat16, enabled=AUTOCAST):
        return F.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())


def optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-3)
