"""Lightning with a metric: ``logged_lit.py [--devices N] [--callback] [--own-share] [--out DIR] [--resume]``."""

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
    def __init__(self, sync):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 3))
        self.sync = sync

    def forward(self, x):
        return self.body(x)

    def training_step(self, batch, _):
        x, y = batch
        loss = nn.functional.cross_entropy(self(x), y)
        self.log("train_loss", loss)  # of the rank's own batch, as most do it
        return loss

    def validation_step(self, batch, _):
        x, y = batch
        self.log("val_acc", (self(x).argmax(1) == y).float().mean(), sync_dist=self.sync)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--callback", action="store_true")
    parser.add_argument("--own-share", action="store_true", help="log the accuracy of the rank's own share")
    parser.add_argument("--out", default="")
    parser.add_argument("--resume", action="store_true")
    args = parser.parse_args()
    callbacks = []
    if args.callback:
        from ddparity.integrations.lightning import DdparityCallback

        callbacks = [DdparityCallback(seal=bool(args.out))]
    lightning.seed_everything(0)
    generator = torch.Generator().manual_seed(1)
    data = TensorDataset(torch.randn(96, 8, generator=generator), torch.randint(0, 3, (96,), generator=generator))
    rank = int(os.environ.get("LOCAL_RANK", 0))
    size = 16 // args.devices
    loaders = [DataLoader(data, batch_size=size, sampler=DistributedSampler(data, args.devices, rank)) for _ in "tv"]
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=args.devices,
        strategy="ddp" if args.devices > 1 else "auto",
        max_epochs=3 if args.resume else 2,
        log_every_n_steps=2,
        logger=False,
        callbacks=callbacks,
        enable_checkpointing=bool(args.out),
        default_root_dir=args.out or None,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
    )
    last = max(Path(args.out).rglob("*.ckpt"), default=None) if args.resume else None
    trainer.fit(Net(not args.own_share), *loaders, ckpt_path=str(last) if last else None, weights_only=False)


if __name__ == "__main__":
    main()
