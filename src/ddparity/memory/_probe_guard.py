"""What is kept from a script while its first steps are tried: the device it asks for, other ranks, the user's files.

Nothing of this happens outside of the process that was started for it.
"""

import builtins
import contextlib
import io
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.overrides import TorchFunctionMode

from ._shard import pretend

_RESULT = (torch.Tensor.cuda, torch.Tensor.pin_memory)
_NOTHING = (
    "set_device", "synchronize", "empty_cache", "reset_peak_memory_stats", "reset_max_memory_allocated", "init",
    "ipc_collect", "set_per_process_memory_fraction",
)  # fmt: skip
_ZERO = (
    "current_device", "memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved",
    "utilization",
)  # fmt: skip
_DEVICE = SimpleNamespace(name="not there", total_memory=1 << 40, major=9, minor=0, multi_processor_count=132)
_REMOVING = (
    (os, "remove"), (os, "unlink"), (os, "rmdir"), (os, "rename"), (os, "replace"), (os, "truncate"),
    (shutil, "rmtree"), (shutil, "move"),
)  # fmt: skip


class Wrappers:
    """What a script wrapped its model in, noted on the way."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        """Note something that the user should know, once."""
        if text not in self.notes:
            self.notes.append(text)


class OnCpu(TorchFunctionMode):
    """Lets a script that asks for a CUDA device have the CPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function with the CPU in the place of a CUDA device."""
        if func in _RESULT:
            return args[0]
        args = tuple(_cpu(each) for each in args)
        kwargs = {name: _cpu(each) for name, each in (kwargs or {}).items() if name != "pin_memory"}
        return func(*args, **kwargs)


def _cpu(value: Any) -> Any:
    if isinstance(value, str) and value.partition(":")[0] == "cuda":
        return "cpu"
    return torch.device("cpu") if isinstance(value, torch.device) and value.type == "cuda" else value


def stand_in(found: Wrappers, device: str, num_ranks: int) -> None:
    """Put stand-ins in the place of what cannot or should not run here."""
    OnCpu().__enter__()
    if device == "cuda":
        _pretend_cuda(num_ranks)
    _plain_compile(found)
    _plain_loaders()
    _plain_ddp(found)
    original = dist.init_process_group

    def init_process_group(*_: Any, **__: Any) -> None:
        if not dist.is_initialized():
            pretend(num_ranks, init=original)

    for module in (dist, dist.distributed_c10d):
        setattr(module, "init_process_group", init_process_group)  # noqa: B010
    for name in ("set_num_threads", "set_num_interop_threads"):
        setattr(torch, name, lambda _: None)  # the process is forked, which threads do not survive


def _pretend_cuda(num_ranks: int) -> None:
    cuda: Any = torch.cuda
    for name in _NOTHING:
        setattr(cuda, name, lambda *_, **__: None)
    for name in _ZERO:
        setattr(cuda, name, lambda *_, **__: 0)
    # A script shall take the way that it takes on the device; torch itself must know that there is none.
    cuda.is_available = _for_scripts(cuda.is_available, lambda: True)
    cuda.device_count = _for_scripts(cuda.device_count, lambda: num_ranks)
    cuda.is_bf16_supported = lambda *_, **__: True
    cuda.get_device_properties = lambda *_: _DEVICE
    cuda.get_device_name = lambda *_: _DEVICE.name
    cuda.get_device_capability = lambda *_: (_DEVICE.major, _DEVICE.minor)
    original = torch.autocast.__init__

    def autocast(self: Any, device_type: str, dtype: Any = None, **more: Any) -> None:
        if device_type == "cuda":
            device_type, dtype = "cpu", dtype or torch.float16
        original(self, device_type, dtype=dtype, **more)

    torch.autocast.__init__ = autocast  # type: ignore[method-assign]


def _for_scripts(real: Callable[..., Any], answer: Callable[[], Any]) -> Callable[..., Any]:
    def asked(*args: Any, **kwargs: Any) -> Any:
        caller = str(sys._getframe(1).f_globals.get("__name__", ""))
        return real(*args, **kwargs) if caller.partition(".")[0] == "torch" else answer()

    return asked


def _plain_compile(found: Wrappers) -> None:
    def plain(model: Any = None, **_: Any) -> Any:
        found.note("torch.compile was left out: compiled code may need less")
        return (lambda inner: inner) if model is None else model

    torch.compile = plain
    nn.Module.compile = lambda self, *_, **__: plain(self) and None  # type: ignore[method-assign]


def _plain_loaders() -> None:
    """Load in this process: workers would be shared by everything that is forked from it."""
    loader: Any = torch.utils.data.DataLoader
    original = loader.__init__
    alone = {"num_workers": 0, "pin_memory": False, "persistent_workers": False, "timeout": 0}
    alone |= dict.fromkeys(("prefetch_factor", "multiprocessing_context", "worker_init_fn"))

    def init(self: Any, dataset: Any, *args: Any, **kwargs: Any) -> None:
        names = ("batch_size", "shuffle", "sampler", "batch_sampler", "num_workers", "collate_fn", "pin_memory")
        kwargs |= dict(zip(names, args, strict=False))
        original(self, dataset, **{**kwargs, **alone, "drop_last": kwargs.get("drop_last", False)})

    loader.__init__ = init


def _plain_ddp(found: Wrappers) -> None:
    """Wrap in nothing: its buckets are added to what is counted, and its reducer cannot do with fake tensors."""

    class DistributedDataParallel(nn.Module):
        def __init__(self, module: nn.Module, *_: Any, **__: Any) -> None:
            super().__init__()
            self.module = module
            self.require_backward_grad_sync = True
            found.names.add("ddp")

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return self.module(*args, **kwargs)

        @contextlib.contextmanager
        def no_sync(self) -> Iterator[None]:
            yield

        def register_comm_hook(self, *_: Any) -> None:
            pass

        def join(self, *_: Any, **__: Any) -> Any:
            return contextlib.nullcontext(self)

    for owner in (nn.parallel, nn.parallel.distributed):
        owner.DistributedDataParallel = DistributedDataParallel  # type: ignore[misc]


# -- the user's files -------------------------------------------------------------------------------------------------


def spare_files(found: Wrappers) -> None:
    """Let the script write over nothing, remove nothing and save nothing; reading works, and so do new files."""
    scratch = Path(tempfile.mkdtemp(prefix="written-", dir=os.environ["DDPARITY_MEMORY_SCRATCH"]))
    original = builtins.open
    kept: dict[Path, Path] = {}

    def guarded(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        path = _users(file)
        if path is not None and any(sign in mode for sign in "wax+"):
            found.note(f"what the script writes to {path.name} is not kept")
            if path not in kept:
                kept[path] = scratch / str(len(kept))
                if ("a" in mode or "+" in mode) and path.is_file():
                    shutil.copyfile(path, kept[path])
            mode = mode.replace("x", "w")
        return original(kept.get(path, file) if path is not None else file, mode, *args, **kwargs)

    builtins.open = guarded
    io.open = guarded
    torch.save = lambda *_, **__: None
    with contextlib.suppress(ImportError):
        import torch.distributed.checkpoint as dcp

        dcp.save = lambda *_, **__: None
    _keep_what_is_there(found)


def _users(file: Any) -> Path | None:
    """Return the path of a file that is the user's, or None."""
    try:
        path = Path(os.fsdecode(file)).absolute()
    except TypeError:  # a file descriptor
        return None
    return None if path.is_relative_to("/dev") or _is_scratch(path) else path


def _is_scratch(path: Path) -> bool:
    return path.is_relative_to(os.environ["DDPARITY_MEMORY_SCRATCH"]) or "__pycache__" in path.parts


def _keep_what_is_there(found: Wrappers) -> None:
    """Let the script remove and rename what it made itself, and leave alone what was there before."""
    began = time.time()
    for module, name in _REMOVING:
        setattr(module, name, _sparing(getattr(module, name), began, found))


def _sparing(original: Callable[..., Any], began: float, found: Wrappers) -> Callable[..., Any]:
    def remove(path: Any, *args: Any, **kwargs: Any) -> Any:
        named = None if isinstance(path, int) else Path(os.fsdecode(path))
        if named is not None and named.exists() and named.stat().st_ctime < began:
            found.note(f"the script was not let remove or rename {named.name}")
            return None
        return original(path, *args, **kwargs)

    return remove
