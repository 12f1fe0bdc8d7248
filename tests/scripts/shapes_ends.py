"""Snippets: ways in which a training process ends, and processes that are no ranks."""

import atexit
import os
import signal
import sys

import torch
import torch.multiprocessing as mp
from shapes_models import _fit, _Net


def _train(steps=1):
    model = _Net()
    _fit(model, torch.randn(4, 6), steps=steps)
    return model


def raises():
    _train()
    secret = "a local"
    raise LookupError(f"nothing under {len(secret)}")


def raises_before_training():
    raise FileNotFoundError("no data")


def raises_with_another_hook():
    _train()
    sys.excepthook = lambda kind, error, trace: print("another hook", kind.__name__)
    raise LookupError("nothing")


def exits_3():
    _train()
    sys.exit(3)


def exits_3_while_handling():
    _train()
    try:
        raise LookupError("nothing")
    except LookupError:
        sys.exit(3)


def exits_0():
    _train()
    sys.exit()


def leaves_at_once():
    _train()
    os._exit(5)


def killed_in_mid_step():
    model = _train()
    model(torch.randn(4, 6)).sum().backward()
    os.kill(os.getpid(), signal.SIGKILL)


def aborts_at_the_end():
    atexit.register(lambda: None)
    _train()


def imports_only():
    pass


def forward_only():
    """Serves a model and never trains."""
    with torch.no_grad():
        _Net()(torch.randn(4, 6))


def loader_workers():
    class Data(torch.utils.data.Dataset):
        net = _Net()

        def __len__(self):
            return 8

        def __getitem__(self, i):
            with torch.no_grad():
                return self.net(torch.full((1, 6), float(i)))[0].detach().repeat(2)

    model = _Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = torch.utils.data.DataLoader(Data(), batch_size=4, num_workers=2, multiprocessing_context="fork")
    for _ in range(2):
        for x in loader:
            model(x).sum().backward()
            optimizer.step()


def _rank(rank, world_size, store):
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world_size)
    torch.manual_seed(rank)
    model = torch.nn.parallel.DistributedDataParallel(_Net())
    _fit(model, torch.randn(4, 6))
    dist.destroy_process_group()


def forked_ranks():
    store = os.path.join(os.environ["TMPDIR"], "forked_ranks.store")
    mp.start_processes(_rank, args=(2, store), nprocs=2, start_method="fork")


def forked_ranks_of_a_parent_that_tried_the_model():
    _Net()(torch.randn(4, 6))
    store = os.path.join(os.environ["TMPDIR"], "forked_ranks_2.store")
    mp.start_processes(_rank, args=(2, store), nprocs=2, start_method="fork")


def forked_helper():
    """A child of a process that trains, which runs a model of its own."""
    _train()
    pid = os.fork()
    if pid == 0:
        _train()
        os._exit(0)
    os.waitpid(pid, 0)
    _train()


def _raises_in_rank(rank):
    _train()
    raise LookupError("nothing")


def forked_rank_raises():
    try:
        mp.start_processes(_raises_in_rank, nprocs=1, start_method="fork")
    except mp.ProcessRaisedException:
        print("parent saw it")
        raise


def _sharded_rank(rank, world_size, store, version, late=False):
    import torch.distributed as dist
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world_size)
    torch.manual_seed(0)
    model = _Net()
    if version == 2:
        fully_shard(model.head)
        fully_shard(model)
    else:
        model = FullyShardedDataParallel(model, device_id=torch.device("cpu"), use_orig_params=True)
    torch.manual_seed(rank)
    x = torch.randn(4, 6)
    if late:  # the root's parameters stay gathered after a forward: an optimizer made now holds the wrong ones
        with torch.no_grad():
            model(x)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        model(x).square().mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


def sharded_ranks():
    store = os.path.join(os.environ["TMPDIR"], "sharded.store")
    mp.start_processes(_sharded_rank, args=(2, store, 2), nprocs=2, start_method="fork")


def sharded_ranks_of_the_first_kind():
    store = os.path.join(os.environ["TMPDIR"], "sharded_1.store")
    mp.start_processes(_sharded_rank, args=(2, store, 1), nprocs=2, start_method="fork")


def sharded_ranks_with_a_late_optimizer():
    store = os.path.join(os.environ["TMPDIR"], "sharded_late.store")
    mp.start_processes(_sharded_rank, args=(2, store, 2, True), nprocs=2, start_method="fork")
