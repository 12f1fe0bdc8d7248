"""Send messages of growing size to and fro between two processes: what a link can do when nobody trains on it.

    torchrun --nproc-per-node 2 -m ddparity.workloads.probe [--backend gloo]

Recorded, its transfers give latency and bandwidth point to point, against which ``ddparity compare`` holds those of the
collectives of a training on the same machine.
"""

import argparse

import torch
import torch.distributed as dist

SIZES = (8, 1 << 10, 1 << 16, 1 << 20, 1 << 23)
"""Bytes of a message."""
ROUNDS = 12


def main() -> None:
    """Send each size to and fro some times."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="gloo", choices=["gloo", "nccl"])
    args = parser.parse_args()
    dist.init_process_group(args.backend)
    rank = dist.get_rank()
    device = torch.device("cuda", rank) if args.backend == "nccl" else torch.device("cpu")
    for size in SIZES:
        message = torch.zeros(size, dtype=torch.uint8, device=device)
        for turn in range(ROUNDS):
            for sender in (0, 1):
                if rank == sender:
                    dist.send(message, 1 - sender, tag=turn)
                elif rank == 1 - sender:
                    dist.recv(message, sender, tag=turn)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
