"""One fault of communication a run, after three good all_reduces: ``comm_faults.py FAULT``, under a launcher."""

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist

TIMEOUT = float(os.environ.get("FAULT_TIMEOUT", "6"))


def good(num: int = 3) -> None:
    for _ in range(num):
        dist.all_reduce(torch.ones(4))


def swapped_operation(rank: int) -> None:
    if rank == 0:
        dist.all_reduce(torch.ones(4))
        dist.broadcast(torch.ones(4), 0)
    else:
        dist.broadcast(torch.ones(4), 0)
        dist.all_reduce(torch.ones(4))


def swapped_order(rank: int) -> None:
    first, second = torch.ones(4), torch.ones(4) * 2
    if rank == 0:
        dist.all_reduce(first)
        dist.all_reduce(second)
    else:
        dist.all_reduce(second)
        dist.all_reduce(first)


def size(rank: int) -> None:
    dist.all_reduce(torch.ones(4 if rank == 0 else 8))


def shape(rank: int) -> None:
    dist.all_reduce(torch.ones(2, 4) if rank == 0 else torch.ones(4, 2))


def dtype(rank: int) -> None:
    dist.all_reduce(torch.ones(4, dtype=torch.float32 if rank == 0 else torch.float64))


def dtype_silent(rank: int) -> None:
    dist.all_reduce(torch.ones(4, dtype=torch.float32 if rank == 0 else torch.int32))


def reduce_op(rank: int) -> None:
    dist.all_reduce(torch.ones(4), op=dist.ReduceOp.SUM if rank == 0 else dist.ReduceOp.MAX)


def root(rank: int) -> None:
    dist.broadcast(torch.ones(4), src=rank)


def layout(rank: int) -> None:
    tensor = torch.ones(2, 4)
    dist.all_reduce(tensor if rank == 0 else torch.ones(4, 2).t())


def gaps(rank: int) -> None:
    dist.all_reduce(torch.ones(8)[::2])


def missing(rank: int) -> None:
    if rank == 0:
        dist.all_reduce(torch.ones(4))
    else:
        time.sleep(TIMEOUT + 2)


def extra(rank: int) -> None:
    if rank == 0:
        dist.all_reduce(torch.ones(4))
    dist.barrier()


def extra_later(rank: int) -> None:
    for turn in range(3):
        dist.all_reduce(torch.ones(4))
        if rank == 0 and turn == 1:
            dist.all_reduce(torch.ones(1))


def gather_for_reduce(rank: int) -> None:
    if rank == 0:
        dist.all_reduce(torch.ones(4))
    else:
        dist.all_gather([torch.ones(4), torch.ones(4)], torch.ones(4))


def raises(rank: int) -> None:
    if rank == 1:
        raise ValueError("a fault of this rank's own")
    dist.all_reduce(torch.ones(4))


def exits(rank: int) -> None:
    if rank == 1:
        os._exit(0)
    dist.all_reduce(torch.ones(4))


def ends(rank: int) -> None:
    if rank == 1:
        sys.exit(0)
    dist.all_reduce(torch.ones(4))


def killed(rank: int) -> None:
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.ones(4))


def stopped(rank: int) -> None:
    if rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    dist.all_reduce(torch.ones(4))


def sizes(rank: int) -> None:
    for exponent in (4, 12, 20, 22):
        for _ in range(8):
            dist.all_reduce(torch.ones(1 << exponent, dtype=torch.uint8))


def gil_held(rank: int) -> None:
    if rank == 1:
        ctypes.PyDLL(None).sleep(int(TIMEOUT) + 2)  # native code that does not let go of the GIL
    dist.all_reduce(torch.ones(4))


def goes_on(rank: int) -> None:
    end = time.time() + TIMEOUT
    while time.time() < end:
        time.sleep(0.1)
        dist.barrier()


def groups_differ(rank: int) -> None:
    dist.new_group([0, 1] if rank == 0 else [1])
    dist.barrier()


def deadlock(rank: int) -> None:
    one, other = dist.new_group([0, 1]), dist.new_group([0, 1])
    dist.barrier(group=one if rank == 0 else other)
    dist.barrier(group=other if rank == 0 else one)


def overwritten(rank: int) -> None:
    buffer = torch.ones(1000)
    work = dist.all_reduce(buffer, async_op=True)
    buffer.zero_()
    work.wait()


def never_waited(rank: int) -> None:
    time.sleep(0.3 * rank)
    dist.all_reduce(torch.ones(1000), async_op=True)
    dist.barrier()


def transfer(rank: int) -> None:
    if rank == 0:
        dist.send(torch.ones(4), 1)
    else:
        dist.recv(torch.ones(8), 0)


def tags(rank: int) -> None:
    if rank == 0:
        dist.send(torch.ones(4), 1, tag=1)
    else:
        dist.recv(torch.ones(4), 0, tag=2)


def healthy(rank: int) -> None:
    for turn in range(5):
        for root_ in range(dist.get_world_size()):
            dist.broadcast(torch.ones(3), root_) if rank == root_ else dist.broadcast(torch.zeros(3), root_)
        dist.all_gather([torch.ones(2) for _ in range(dist.get_world_size())], torch.ones(2))
        dist.all_gather_object([None] * dist.get_world_size(), {"turn": turn, "rank": "x" * (1 + 9 * rank)})
        work = dist.all_reduce(torch.ones(2), async_op=True)
        work.wait()
    pair = dist.new_group([0, 1])
    dist.all_reduce(torch.ones(2), group=pair)
    if rank == 0:
        dist.send(torch.ones(2), 1)
    elif rank == 1:
        dist.recv(torch.ones(2), 0)
    dist.barrier()


def mark(name: str) -> None:
    """Leave a mark for ``benchmarks/comm_faults.py``: when this rank came to the fault."""
    if marks := os.environ.get("FAULT_MARKS"):
        with open(f"{marks}/{name}", "w") as file:
            file.write(str(time.time()))


def dump_soon(rank: int) -> Callable[[], None]:
    """Write a flight-recorder dump before the time-out would end the run; return what writes it now."""
    folder = os.environ["FAULT_DUMPS"]

    def write() -> None:
        from torch._C._distributed_c10d import _dump_fr_trace, _dump_fr_trace_json

        for name, dump in ((f"rank_{rank}", _dump_fr_trace), (f"json_{rank}.json", _dump_fr_trace_json)):
            with open(f"{folder}/.{name}-{threading.get_ident()}", "wb") as file:
                file.write(dump())
            os.replace(file.name, f"{folder}/{name}")

    timer = threading.Timer(TIMEOUT * 0.6, write)
    timer.daemon = True
    timer.start()
    return write


def main() -> None:
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo", timeout=timedelta(seconds=TIMEOUT))
    good()
    write = dump_soon(rank) if "FAULT_DUMPS" in os.environ else None
    mark(f"rank-{rank}")
    try:
        globals()[sys.argv[1]](rank)
    finally:
        if write is not None:
            write()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
