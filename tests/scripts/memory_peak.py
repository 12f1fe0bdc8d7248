"""Two steps of a recipe on real tensors: prints the most that the CPU's allocator had handed out on rank 0.

python memory_peak.py RECIPE BATCH
torchrun --nproc-per-node 2 memory_peak.py RECIPE BATCH none|ddp|fsdp
"""

import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ddparity._recipe import load_recipe


def main() -> None:
    recipe, batch = load_recipe(Path(sys.argv[1])), int(sys.argv[2])
    wrapper = sys.argv[3] if len(sys.argv) > 3 else "none"
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiled:
        model = recipe.model()
        if wrapper == "fsdp":
            from torch.distributed.device_mesh import init_device_mesh
            from torch.distributed.fsdp import fully_shard

            mesh = init_device_mesh("cpu", (dist.get_world_size(),))
            for block in model.blocks:
                fully_shard(block, mesh=mesh)
            fully_shard(model, mesh=mesh)
        wrapped = DistributedDataParallel(model) if wrapper == "ddp" else model
        optimizer = recipe.optimizer(model)
        inputs = recipe.batch(batch)
        for _ in range(2):
            loss = recipe.loss(wrapped, inputs)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    print("peak", most_of(profiled))
    if dist.is_initialized():
        dist.destroy_process_group()


def most_of(profiled: Any) -> int:
    held = most = 0
    for event in sorted(profiled.profiler.kineto_results.events(), key=lambda event: event.start_ns()):
        if event.name() == "[memory]":
            held += event.nbytes()
            most = max(most, held)
    return most


if __name__ == "__main__":
    main()
