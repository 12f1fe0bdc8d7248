"""A small training with one of several memory faults: ``python memory_faults.py FAULT [--steps N]``."""

import argparse
import os
import resource

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

FAULTS = (
    "none",
    "graph",
    "outputs",
    "detached",
    "cache",
    "hook",
    "late",
    "evaluation",
    "rank0_copy",
    "retain_graph",
    "last_batch",
    "limit",
    "numbers",
    "long_sequence",
    "raised",
    "large_evaluation",
)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inp = nn.Linear(64, 256)
        self.mid = nn.ModuleList(nn.Linear(256, 256) for _ in range(4))
        self.head = nn.Linear(256, 128)
        self.cache: dict[int, torch.Tensor] = {}
        self.keep = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.inp(x)
        for layer in self.mid:
            hidden = torch.tanh(layer(hidden))
        if self.keep:
            self.cache[len(self.cache)] = hidden.detach()
        return self.head(hidden)


def evaluate(net: nn.Module, x: torch.Tensor, *, with_gradients: bool) -> torch.Tensor:
    net.eval()
    found = []
    with torch.set_grad_enabled(with_gradients):
        for _ in range(8):
            found.append(net(x))  # noqa: PERF401 - the fault
    net.train()
    return torch.cat(found).mean()


def limit_memory(extra: int) -> None:
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + extra, now + extra))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("fault", choices=FAULTS)
    parser.add_argument("--steps", type=int, default=9)
    args = parser.parse_args()
    fault, rank, world = args.fault, int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    if world > 1:
        dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = Net()
    net.keep = fault == "cache"
    model = DistributedDataParallel(net) if world > 1 else net
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    seen: list[torch.Tensor] = []
    if fault == "hook":
        net.mid[0].register_forward_hook(lambda module, args, output: seen.append(output))
    kept, total, numbers = [], 0.0, []
    extra = [torch.ones(3 << 20) for _ in range(2)] if fault == "rank0_copy" and rank == 0 else []
    for step in range(args.steps):
        size = 2048 * (4 if fault == "last_batch" and step == args.steps - 1 else 1)
        x = torch.randn(2048, 64, generator=torch.Generator().manual_seed(step))
        x = x.repeat(size // 2048, 1)[rank::world]
        if fault == "limit" and step == 5 and rank == world - 1:
            x = x.repeat(64, 1)
            limit_memory(24 << 20)
        if fault == "long_sequence" and step == 5 and rank == world - 1:
            x = x[:, None].repeat(1, 9, 1)
        out = model(x)
        if fault == "raised" and step == 4 and rank == world - 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 1.10 GiB free")
        loss = functional.mse_loss(out, torch.zeros_like(out))
        optimizer.zero_grad()
        loss.backward(retain_graph=fault == "retain_graph")
        optimizer.step()
        if fault == "graph":
            total = total + net(x * 0.9).amax(1).mean()
        if fault == "outputs" or (fault == "late" and step >= 4):
            kept.append(out)
        if fault == "detached":
            kept.append(out.detach())
        numbers.append(loss.item())
        if fault in ("evaluation", "none", "large_evaluation") and step == 3:
            many = x.repeat(8, 1) if fault == "large_evaluation" and rank == 0 else x
            evaluate(net, many, with_gradients=fault == "evaluation")
    print(len(extra), len(kept), float(total), numbers[-1])
    if world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
