"""The first steps of a script, once for each batch size: each in a fork of the process that came to its first forward.

Up to there the script runs as it is: it builds its model, opens its data and makes its first batch. Then a fork makes
fakes of the parameters, buffers and optimizer state, and of the batch in the wanted size, and the script goes on as it
would, through loss, backward and optimizer, until two steps are done. The process that forks never trains.
"""

import contextlib
import gc
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils._python_dispatch import _disable_current_modes

from ._account import INPUTS, Account
from ._fit import Point
from ._predict import DEPENDENT, point_of
from ._probe_batch import LateBatch, Shape, resize_visible, shape_of_call
from ._probe_values import AnsweringFakes, ValueNeeded, ValueRecorder, Values
from ._shard import Sharding, pretend
from ._swap import become

_STEPS = 2


@dataclass(frozen=True, kw_only=True)
class Job:
    """What a fork tries."""

    batch: int
    seq: int | None
    fake: bool
    shard: int = 0
    values: Values | None = None
    record: bool = False
    late: bool = False
    """Also give another size to what looks like a batch and is made of data after the model was called."""


class Unable(Exception):
    """A fork did not come to the end of a step; ``dependent`` if because of a value that fakes do not have."""

    def __init__(self, text: str, *, dependent: bool) -> None:
        super().__init__(text)
        self.dependent = dependent


class Steps:
    """Waits for the first forward that trains; then ``decide`` runs forks and ends the process.

    Args:
        device: What the training will run on.
        batch_dim: The dimension of the inputs that counts samples.
        folder: Where forks leave what they found.
        decide: Called at the first forward; it calls ``run``, and must not return.
    """

    def __init__(self, *, device: str, batch_dim: int, folder: Path, decide: Callable[["Steps"], None]) -> None:
        self.device, self.batch_dim, self.folder = device, batch_dim, folder
        self.decide = decide
        self.shape: Shape | None = None
        self.job: Job | None = None
        self._depth = 0
        self._count = 0
        self._modes: list[Any] = []
        self._active = False
        self._stepped: dict[int, int] = {}
        self._buffers: set[int] = set()
        self._leader: torch.optim.Optimizer | None = None

    def watch(self) -> None:
        """Begin to wait."""
        register_module_forward_pre_hook(self._before)
        register_module_forward_hook(self._after, always_call=True)
        register_optimizer_step_post_hook(self._optimizer_stepped)
        loader: Any = torch.utils.data.dataloader._BaseDataLoaderIter
        original = loader.__next__
        watch = self

        def fetched(self: Any) -> Any:
            with watch.aside():
                return original(self)

        loader.__next__ = fetched

    # -- the process that forks ---------------------------------------------------------------------------------------

    def run(self, job: Job) -> tuple[Point, Values]:
        """Try a job in a fork and return what it found.

        Raises:
            Unable: It did not come to the end of a step.
        """
        self._count += 1
        file = self.folder / f"fork-{self._count}.json"
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            self.job, self._file = job, file
            raise _InFork
        _, status = os.waitpid(pid, 0)
        try:
            told = json.loads(file.read_text())
        except (OSError, ValueError):
            ended = f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"code {os.WEXITSTATUS(status)}"
            raise Unable(f"it ended with {ended} before a step was done", dependent=False) from None
        if "point" not in told:
            raise Unable(told["error"], dependent=told["dependent"])
        return Point(**told["point"]), told["values"]

    def _before(self, module: nn.Module, args: Any) -> None:
        self._depth += 1
        if self._depth > 1 or not torch.is_grad_enabled() or not module.training:
            return
        if self.job is None:
            if not any(parameter.requires_grad for parameter in module.parameters()):
                return
            self.shape = shape_of_call(sys._getframe(1), args, self.batch_dim)
            if self.shape is None:
                return
            try:
                self.decide(self)
            except _InFork:
                self._begin()
                # Sharding adds a hook to this module, too late for the call that is being made.
                if self.job is not None and self.job.shard and hasattr(module, "_get_fsdp_state"):
                    sharded: Any = module
                    sharded._get_fsdp_state()._pre_forward(module, args, {})
        self._resume()

    def _after(self, module: nn.Module, args: Any, output: Any) -> None:
        self._depth = max(0, self._depth - 1)

    # -- a fork -------------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Make fakes of everything that trains, and begin to count."""
        job = self.job
        assert job is not None
        tops = _tops()
        sharding = self._sharding(job.shard) if job.shard and not _is_sharded(tops) else None
        self.account = Account(self.device)
        if job.record:
            self._modes.append(ValueRecorder())
        if job.late:
            self._modes.append(LateBatch(self._late))
        self._modes.append(self.account)
        optimizers = _optimizers()
        if job.fake:
            self._fakes = AnsweringFakes(job.values)
            if sharding is not None or _is_sharded(tops):
                # Buffers for what is gathered are made from nothing. Elsewhere what is made from nothing stays real, so
                # that code that makes data between forward and backward can do so.
                self._modes.insert(0, self._fakes)
            with self._fakes:
                self._make_fakes(tops, optimizers)
                if sharding is not None:
                    for top in tops:
                        _follow(optimizers, sharding.apply(top))
        for top in tops:
            self.account.hold_model(top)
        for optimizer in optimizers:
            self.account.hold_optimizer(optimizer)
        self._buffers = {id(buffer) for top in tops for buffer in top.buffers()}

    def _sharding(self, num_ranks: int) -> Sharding:
        if not torch.distributed.is_initialized():
            pretend(num_ranks)
        return Sharding(num_ranks)

    def _make_fakes(self, tops: list[nn.Module], optimizers: list[torch.optim.Optimizer]) -> None:
        tensors = {id(t): t for top in tops for t in (*top.parameters(), *top.buffers())}
        for optimizer in optimizers:
            held = [p for group in optimizer.param_groups for p in group["params"]]
            held += [t for state in optimizer.state.values() for t in state.values() if isinstance(t, torch.Tensor)]
            tensors |= {id(t): t for t in held}
        shards = [getattr(each, "_sharded_param_data", None) for each in gc.get_objects() if _is_fsdp_param(each)]
        tensors |= {id(t): t for t in shards if isinstance(t, torch.Tensor)}
        for tensor in map(_local, list(tensors.values())):
            gradient, tensor.grad = tensor.grad, None
            _become_fake(tensor)
            if gradient is not None:
                tensor.grad = torch.empty_like(tensor)

    def _resume(self) -> None:
        """A forward begins: count from here on, and see to it that its batch has the wanted size."""
        job, shape = self.job, self.shape
        assert job is not None
        assert shape is not None
        if not self._active:
            self._active = True
            for mode in self._modes:
                mode.__enter__()
        with _disable_current_modes():
            make = self._fake if job.fake else _repeated
            batch = resize_visible(shape, job.batch, job.seq, make, self._buffers)
        self.account.hold(batch, INPUTS)

    def _late(self, tensor: torch.Tensor) -> torch.Tensor | None:
        job, shape = self.job, self.shape
        sizes = shape.resized(tensor.shape, job.batch, job.seq) if job is not None and shape is not None else None
        if job is None or sizes is None or sizes == list(tensor.shape):
            return None
        with _disable_current_modes():
            return self._fake(tensor, sizes) if job.fake else _repeated(tensor, sizes)

    def _fake(self, tensor: torch.Tensor, sizes: list[int]) -> torch.Tensor:
        with self._fakes:
            made = torch.empty(sizes, dtype=tensor.dtype, device=tensor.device)
            last = tensor.ndim == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
            if last and not tensor.is_contiguous():
                made = made.to(memory_format=torch.channels_last)
            return made.requires_grad_(tensor.requires_grad)

    def _pause(self) -> None:
        if self._active:
            self._active = False
            for mode in reversed(self._modes):
                mode.__exit__(None, None, None)

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Load data for real: it has no part in what the device holds."""
        if not self._active:
            yield
            return
        with _disable_current_modes():
            yield

    def _optimizer_stepped(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if self.job is None:
            return
        self._stepped[id(optimizer)] = self._stepped.get(id(optimizer), 0) + 1
        if self._leader is None or self._stepped[id(optimizer)] > self._stepped[id(self._leader)]:
            self._leader = optimizer
        if optimizer is not self._leader:
            return
        # What steps after the leader (a discriminator's optimizer) has its second step when the leader has its third.
        done = self._stepped[id(optimizer)]
        if done >= _STEPS + (len(self._stepped) > 1):
            self.finish()
        self.account.end_step()
        self._pause()

    def finish(self) -> None:
        """Write what was found, and end the fork."""
        assert self.job is not None
        if len(self.account.steps) == 1 or self.account.steps[-1].bytes:
            self.account.end_step()
        if not self._stepped:
            self.fail(ValueNeeded("the script ended before its optimizer stepped"))
        trained = [p for each in _optimizers() for group in each.param_groups for p in group["params"]]
        point = point_of(self.account, trained, self.job.batch, self.job.seq)
        recorder = next((mode for mode in self._modes if isinstance(mode, ValueRecorder)), None)
        self._tell({"point": asdict(point), "values": recorder.values if recorder is not None else {}})

    def fail(self, error: BaseException) -> None:
        """Write why a step could not be done, and end the fork."""
        dependent = isinstance(error, (ValueNeeded, *DEPENDENT))
        frames = traceback.extract_tb(error.__traceback__)
        own = [each for each in frames if "/torch/" not in each.filename and "/ddparity/memory/" not in each.filename]
        at = f" at {Path(own[-1].filename).name}:{own[-1].lineno}" if own else ""
        text = str(error).strip().split("\n")[0][:300]
        self._tell({"error": f"{type(error).__name__}: {text}{at}", "dependent": dependent})

    def _tell(self, found: dict[str, Any]) -> None:
        self._pause()
        self._file.write_text(json.dumps(found))
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


class _InFork(BaseException):
    """Unwinds from the decision to the hook in a fork, where the script goes on."""


def _tops() -> list[nn.Module]:
    """Return the modules that live and are inside of no other."""
    modules = [each for each in gc.get_objects() if issubclass(type(each), nn.Module)]
    inner = {id(child) for module in modules for child in module._modules.values() if child is not None}
    return [each for each in modules if id(each) not in inner and any(True for _ in each.parameters())]


def _optimizers() -> list[torch.optim.Optimizer]:
    return [each for each in gc.get_objects() if issubclass(type(each), torch.optim.Optimizer)]


def _is_sharded(tops: list[nn.Module]) -> bool:
    return any(_local(parameter) is not parameter for top in tops for parameter in top.parameters())


def _is_fsdp_param(each: Any) -> bool:
    return type(each).__name__ == "FSDPParam"


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return getattr(tensor, "_local_tensor", tensor)


def _become_fake(tensor: torch.Tensor) -> None:
    made = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=tensor.device)
    made.requires_grad_(tensor.requires_grad)
    if isinstance(tensor, nn.Parameter):
        made._is_param = True  # by which nn.Parameter knows parameters of other tensor types
    if not become(tensor, made):
        raise RuntimeError(f"a tensor of shape {tuple(tensor.shape)} is referred to by others and cannot be replaced")


def _repeated(tensor: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    for dim, wanted in enumerate(sizes):
        if wanted != tensor.shape[dim]:
            tensor = tensor.detach().index_select(dim, torch.arange(wanted) % tensor.shape[dim])
    return tensor.detach().clone()


def _follow(optimizers: list[torch.optim.Optimizer], replaced: dict[nn.Parameter, nn.Parameter]) -> None:
    """Let optimizers update the parameters that stand in the place of former ones."""
    by_id = {id(old): new for old, new in replaced.items()}
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["params"] = [by_id.get(id(parameter), parameter) for parameter in group["params"]]
