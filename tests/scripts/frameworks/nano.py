"""A loop as nanoGPT's, with ``get_batch`` and a model that returns its loss: ``nano.py [--accumulate N] [--sum]``."""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

VOCABULARY, BLOCK, BATCH = 48, 16, 8


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCABULARY, 32), nn.Embedding(BLOCK, 32)
        self.block = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.head = nn.Linear(32, VOCABULARY, bias=False)
        self.head.weight = self.wte.weight

    def forward(self, idx, targets=None):
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1]))
        mask = nn.Transformer.generate_square_subsequent_mask(idx.shape[1])
        logits = self.head(self.block(x, src_mask=mask, is_causal=True))
        loss = None if targets is None else F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        return logits, loss


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--sum", action="store_true", help="micro-batches are added up and not averaged")
    args = parser.parse_args()
    ddp = int(os.environ.get("RANK", -1)) != -1
    if ddp:
        dist.init_process_group("gloo")
    rank, world = (dist.get_rank(), dist.get_world_size()) if ddp else (0, 1)
    torch.manual_seed(1337)
    tokens = torch.randint(0, VOCABULARY, (4096,), generator=torch.Generator().manual_seed(2))
    draws = torch.Generator().manual_seed(3)  # the same on every rank, which takes its own of what is drawn
    micro = BATCH // world // args.accumulate

    def get_batch():
        starts = torch.randint(len(tokens) - BLOCK - 1, (BATCH,), generator=draws)[rank::world]
        x = torch.stack([tokens[i : i + BLOCK] for i in starts])
        y = torch.stack([tokens[i + 1 : i + 1 + BLOCK] for i in starts])
        return list(zip(x.split(micro), y.split(micro), strict=True))

    raw_model = Model()
    model = DistributedDataParallel(raw_model) if ddp else raw_model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95))
    for _ in range(6):
        for number, (x, y) in enumerate(get_batch()):
            if ddp:
                model.require_backward_grad_sync = number == args.accumulate - 1
            _, loss = model(x, y)
            (loss if args.sum else loss / args.accumulate).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    if ddp:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
