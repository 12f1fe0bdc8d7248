"""One training in many parallelisms: DDP, FSDP1, FSDP2, hybrid shards, tensor parallel, both, sharded optimizer."""

import argparse
import gc
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

KINDS = ("ddp", "zero", "fsdp1", "fsdp1_orig", "fsdp", "fsdp_noreshard", "hsdp", "tp", "dptp", "megatron")


class Columns(nn.Module):
    """A hand-written column-parallel layer that gathers its output and marks its parameters as Megatron does."""

    def __init__(self, whole: nn.Linear, rank: int, world: int) -> None:
        super().__init__()
        self.world, rows = world, whole.out_features // world
        self.weight = nn.Parameter(whole.weight.detach()[rank * rows : (rank + 1) * rows].clone())
        self.bias = nn.Parameter(whole.bias.detach()[rank * rows : (rank + 1) * rows].clone())
        for parameter in (self.weight, self.bias):
            parameter.tensor_model_parallel, parameter.partition_dim, parameter.partition_stride = True, 0, 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Gather.apply(F.linear(Copy.apply(x), self.weight, self.bias), self.world)


class Copy(torch.autograd.Function):
    """The same on every rank; gradients are summed."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous()
        dist.all_reduce(grad)
        return grad


class Gather(torch.autograd.Function):
    """All ranks' columns side by side; each rank keeps the gradient of its own."""

    @staticmethod
    def forward(ctx, x, world):
        parts = [torch.empty_like(x) for _ in range(world)]
        dist.all_gather(parts, x.contiguous())
        ctx.world = world
        return torch.cat(parts, dim=-1)

    @staticmethod
    def backward(ctx, grad):
        return grad.chunk(ctx.world, dim=-1)[dist.get_rank()], None


def wrapped(net: nn.Module, kind: str, world: int, rank: int) -> tuple[nn.Module, int, int]:
    """Return what is called, and the rank's place among the ranks that share the samples."""
    if kind in ("fsdp", "fsdp_noreshard", "hsdp", "dptp"):
        from torch.distributed.fsdp import fully_shard

        more = {"reshard_after_forward": False} if kind == "fsdp_noreshard" else {}
        if kind in ("hsdp", "dptp"):
            mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("outer", "inner"))
            more["mesh"] = mesh["outer"] if kind == "dptp" else mesh
        if kind == "dptp":
            in_tensor_parallel(net, mesh["inner"])
        else:
            for layer in net:
                if isinstance(layer, nn.Linear):
                    fully_shard(layer, **more)
        fully_shard(net, **more)
        return (net, 2, mesh.get_local_rank("outer")) if kind == "dptp" else (net, world, rank)
    if kind.startswith("fsdp1"):
        from torch.distributed.fsdp import FullyShardedDataParallel

        cpu = torch.device("cpu")
        return FullyShardedDataParallel(net, device_id=cpu, use_orig_params=kind == "fsdp1_orig"), world, rank
    if kind == "tp":
        in_tensor_parallel(net, init_device_mesh("cpu", (world,)))
        return net, 1, 0
    if kind == "megatron":
        net[0] = Columns(net[0], rank, world)
        return net, 1, 0
    return nn.parallel.DistributedDataParallel(net), world, rank


def in_tensor_parallel(net: nn.Module, mesh) -> None:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    parallelize_module(net, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})


def train(args: argparse.Namespace, world: int, rank: int) -> None:
    torch.manual_seed(0)
    net: nn.Module = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
    x, y = torch.randn(96, 12), torch.arange(96) % 4
    model, num, place = wrapped(net, args.kind, world, rank) if world > 1 else (net, 1, 0)
    if world > 1 and args.kind == "zero":
        from torch.distributed.optim import ZeroRedundancyOptimizer

        optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.AdamW, lr=0.01)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    each = 16 // num
    for step in range(4):
        first = step * 16 + place * each
        loss = F.cross_entropy(model(x[first : first + each]), y[first : first + each])
        optimizer.zero_grad()
        loss.backward()
        if args.bug and step == 1 and rank == world - 1:
            gradients = [p.grad for p in net.parameters() if p.grad is not None and p.grad.numel()]
            gradient = gradients[0]
            (gradient.to_local() if hasattr(gradient, "to_local") else gradient).mul_(1.5)
        optimizer.step()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kind", default="ddp", choices=KINDS)
    parser.add_argument("--bug", action="store_true", help="in step 1 the last rank's first gradient is too large")
    args = parser.parse_args()
    world, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    if world > 1:
        dist.init_process_group("gloo")
    train(args, world, rank)
    if world > 1:
        gc.collect()
        dist.destroy_process_group()
        gc.collect()


if __name__ == "__main__":
    main()
