"""A small model, trained by Lightning: ``lit.py [--devices N] [--accumulate N] [--leave-out]``."""

import argparse
import os
import warnings
from pathlib import Path

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

warnings.filterwarnings("ignore")


class Net(lightning.LightningModule):
    """Its training step calls its parts, not itself: on one device no module is called with targets."""

    def __init__(self, leave_out=False):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16))
        self.head = nn.Linear(16, 3)
        self.leave_out = leave_out

    def training_step(self, batch, _):
        x, y = batch
        return nn.functional.cross_entropy(self.head(self.body(x)), y)

    def validation_step(self, batch, _):
        x, y = batch
        self.log("val", nn.functional.cross_entropy(self.head(self.body(x)), y), sync_dist=True)

    def configure_optimizers(self):
        held = self.head.parameters() if self.leave_out else self.parameters()
        return torch.optim.AdamW(held, lr=1e-2)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--leave-out", action="store_true", help="the optimizer holds the head alone")
    parser.add_argument("--out", default="")
    parser.add_argument("--resume", action="store_true")
    args = parser.parse_args()
    lightning.seed_everything(0)
    generator = torch.Generator().manual_seed(1)
    data = TensorDataset(torch.randn(96, 8, generator=generator), torch.randint(0, 3, (96,), generator=generator))
    rank = int(os.environ.get("LOCAL_RANK", 0))
    sampler = DistributedSampler(data, args.devices, rank)
    loader = DataLoader(data, batch_size=16 // args.devices // args.accumulate, sampler=sampler)
    held_out = DataLoader(data, batch_size=16 // args.devices, sampler=DistributedSampler(data, args.devices, rank))
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=args.devices,
        strategy="ddp" if args.devices > 1 else "auto",
        max_epochs=2,
        logger=False,
        enable_checkpointing=bool(args.out),
        default_root_dir=args.out or None,
        enable_progress_bar=False,
        enable_model_summary=False,
        accumulate_grad_batches=args.accumulate,
        use_distributed_sampler=False,
    )
    last = max(Path(args.out).rglob("*.ckpt"), default=None) if args.out and args.resume else None
    trainer.fit(Net(args.leave_out), loader, held_out, ckpt_path=str(last) if last else None, weights_only=False)


if __name__ == "__main__":
    main()
