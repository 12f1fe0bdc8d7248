"""A small training on several ranks with one fault of communication in step 2: ``comm_training.py FAULT``."""

import os
import signal
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

STEPS = 6
FAULT = sys.argv[1] if len(sys.argv) > 1 else "none"
RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(8, 8)
        self.twin = nn.Linear(8, 8)
        self.head = nn.Linear(8, 1)

    def forward(self, x, use_twin=True):
        x = torch.tanh(self.body(x))
        if FAULT == "uneven_work":
            time.sleep(0.02 * len(x))  # work that grows with the samples
        return self.head(torch.tanh(self.twin(x)) if use_twin else x)


class Samples(Dataset):
    def __len__(self) -> int:
        return 8 * STEPS

    def __getitem__(self, index):
        if FAULT == "slow_loader" and RANK == 1:
            time.sleep(0.05)
        return torch.sin(torch.arange(8.0) + index)


def batches():
    if FAULT == "slow_loader":
        yield from DataLoader(Samples(), batch_size=4)
        return
    if FAULT == "uneven_work":  # now this rank holds more, now that
        for step in range(12):
            yield torch.sin(torch.arange(128.0).reshape(16, 8) + step)[: 14 if (step + RANK) % 2 else 2]
        return
    for step in range(STEPS):
        yield torch.sin(torch.arange(64.0).reshape(8, 8) + step)[RANK::WORLD]


def reduce_by_hand(net: nn.Module, step: int) -> None:
    """Average the gradients, with the fault of step 2."""
    faulty = step == 2
    parameters = list(net.parameters())
    if faulty and FAULT == "reversed" and RANK == 1:
        parameters[:4] = [parameters[2], parameters[3], parameters[0], parameters[1]]
    if faulty and FAULT == "skipped" and RANK == 1:
        return
    group = PAIRS[RANK] if FAULT == "small_group" and faulty else None
    for parameter in parameters:
        parameter.grad /= WORLD
        op = dist.ReduceOp.MAX if faulty and FAULT == "other_op" and RANK == 1 else dist.ReduceOp.SUM
        if faulty and FAULT == "in_flight":
            work = dist.all_reduce(parameter.grad, async_op=True)
            parameter.grad.mul_(1.0)
            work.wait()
        elif faulty and FAULT == "unwaited":
            dist.all_reduce(parameter.grad, async_op=True)
        else:
            dist.all_reduce(parameter.grad, op=op, group=group)


def mark(step: int) -> None:
    """Leave a mark for ``benchmarks/comm_faults.py``: when this rank came to the step of the fault."""
    if step == 2 and (marks := os.environ.get("FAULT_MARKS")):
        with open(f"{marks}/rank-{RANK}", "w") as file:
            file.write(str(time.time()))


def end_badly(step: int) -> None:
    if step != 2 or RANK != 1:
        return
    if FAULT == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if FAULT == "exits":
        os._exit(0)
    if FAULT == "raises":
        raise LookupError("a fault of this rank's own")


def start() -> None:
    if FAULT == "other_port" and RANK == 1:
        os.environ["MASTER_PORT"] = "1"
    timeout = 5 if FAULT == "other_port" else 9 if FAULT == "other_timeout" and RANK == 1 else 8
    rank = 0 if FAULT == "same_rank" else RANK
    dist.init_process_group("gloo", timeout=timedelta(seconds=timeout), rank=rank, world_size=WORLD)


def main() -> None:
    torch.manual_seed(0)
    wrapped = FAULT.startswith("ddp") or FAULT in ("none", "slow_loader", "slow_rank", "uneven_work")
    if WORLD > 1:
        start()
        PAIRS.extend(dist.new_group([rank], timeout=timedelta(seconds=8)) for rank in range(WORLD))
    net = Net()
    model = DistributedDataParallel(net) if WORLD > 1 and wrapped else net
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step, batch in enumerate(batches()):
        mark(step)
        end_badly(step)
        if FAULT == "slow_rank" and RANK == 1:
            time.sleep(0.2)
        unused = FAULT == "ddp_unused" and step >= 2
        loss = model(batch, use_twin=not unused).square().mean()
        optimizer.zero_grad()
        if FAULT == "ddp_skip_backward" and step == 2 and RANK == 1:
            continue
        loss.backward()
        if WORLD > 1 and not wrapped:
            reduce_by_hand(net, step)
        optimizer.step()
    if WORLD > 1:
        dist.barrier()
        dist.destroy_process_group()


PAIRS: list = []
if __name__ == "__main__":
    main()
