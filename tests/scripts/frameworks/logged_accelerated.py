"""A loop on Accelerate that logs: ``logged_accelerated.py [--callback] [--own-share] [--out DIR] [--load]``."""

import argparse

import numpy as np
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--callback", action="store_true")
    parser.add_argument("--own-share", action="store_true", help="log the accuracy of the rank's own share")
    parser.add_argument("--out", default="")
    parser.add_argument("--load", action="store_true")
    args = parser.parse_args()
    accelerator = Accelerator(cpu=True)
    if args.callback:
        from ddparity.integrations.accelerate import watch

        watch(accelerator, seal=True)
    accelerator.init_trackers("run", config={"learning_rate": 1e-2, "dropout": 0.0, "data": "/somewhere"})
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    data = TensorDataset(torch.randn(96, 8, generator=generator), torch.randint(0, 3, (96,), generator=generator))
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    size = 16 // accelerator.num_processes
    loader, held_out = DataLoader(data, batch_size=size), DataLoader(data, batch_size=size)
    model, optimizer, loader, held_out = accelerator.prepare(model, optimizer, loader, held_out)
    if args.load:
        accelerator.load_state(args.out)
    for epoch in range(2):
        for x, y in loader:
            loss = torch.nn.functional.cross_entropy(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            accelerator.log({"loss": loss.detach()}, step=epoch)
        right = []
        with torch.no_grad():
            for x, y in held_out:
                predicted = model(x).argmax(1)
                if not args.own_share:
                    predicted, y = accelerator.gather_for_metrics((predicted, y))
                right.append((predicted == y).numpy())
        accelerator.log({"accuracy": float(np.concatenate(right).mean()), "eval_time": epoch + 0.1}, step=epoch)
    if args.out and not args.load:
        accelerator.save_state(args.out)
    accelerator.end_training()


if __name__ == "__main__":
    main()
