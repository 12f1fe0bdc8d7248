"""Where process groups are made, used by wrappers, and given up: the patches that let the ledger see them."""

import functools
import inspect
import os
import sys
import time
import weakref
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec
import torch
import torch.distributed as dist

from ddparity.trace._environment import allowed_environment
from ddparity.trace._ring_format import DONE, INT, Field, Kind

from ._collectives import RecordedGroup
from ._guard import guarded, unserializable
from ._ring import MAX_PARAMETERS

if TYPE_CHECKING:
    from ._comm import CommWatch
    from ._session import Session

_MAX_NAMES = 2000
_RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")
_WORLD_SIZES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS")


def _put_in_place(name: str, original: Any, wrapped: Any) -> None:
    """Put a wrapper wherever torch holds a function under its name: ``init_device_mesh`` has names of its own."""
    for module in list(sys.modules.values()):
        of_torch = str(getattr(module, "__name__", "")).startswith("torch.distributed")
        if of_torch and vars(module).get(name) is original:
            setattr(module, name, wrapped)


class GroupPatches:
    """Wraps what makes and ends process groups.

    Attributes:
        reduced: Names of the parameters that the newest wrapper reduces, by their index in its reducer.
    """

    def __init__(self, watch: "CommWatch") -> None:
        self.watch = watch
        self.session: Session = watch.session
        self.reduced: list[str] = []
        self._local = False
        self._num_made = 0
        self._labels: dict[str, int] = {}
        self._taken = 0

    def install(self) -> None:
        """Put the wrappers in place, at the end of ``import torch``."""
        if not dist.is_available():
            return
        c10d = dist.distributed_c10d
        self._wrap_init(c10d)
        self._wrap_helper(c10d)
        self._wrap_new_group(c10d)
        self._wrap_batched(c10d)
        self._wrap_destroy(c10d)
        self._wrap_reducer()
        self._wrap_loader()

    # -- init_process_group -------------------------------------------------------------------------------------------

    def _wrap_init(self, c10d: Any) -> None:
        original = c10d.init_process_group
        parameters = inspect.signature(original)

        @functools.wraps(original)
        def init_process_group(*args: Any, **kwargs: Any) -> Any:
            at = self._init_begins(parameters, args, kwargs)
            try:
                result = original(*args, **kwargs)
            except Exception as error:
                self._init_failed(error)
                raise
            self._init_ends(at)
            return result

        _put_in_place("init_process_group", original, init_process_group)

    @guarded
    def _init_begins(self, parameters: inspect.Signature, args: Any, kwargs: Any) -> int | None:
        if torch.utils.data.get_worker_info() is not None:
            return None
        given = parameters.bind(*args, **kwargs).arguments
        rank, size = int(given.get("rank", -1)), int(given.get("world_size", -1))
        rank = rank if rank >= 0 else _number(_RANKS, 0)
        size = size if size >= 0 else _number(_WORLD_SIZES, 1)
        ring = self.watch.open(rank, size)
        timeout = given.get("timeout")
        method = str(given.get("init_method") or ("store" if given.get("store") is not None else "env://"))
        address, port = os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", "")
        told = {
            "backend": str(given.get("backend") or ""),
            "timeout_s": timeout.total_seconds() if isinstance(timeout, timedelta) else None,
            "method": method if "://" not in method or method == "env://" else method.split("?")[0],
            "master": f"{address}:{port}" if address else "",
            "rank": rank,
            "world_size": size,
            "torch": str(torch.__version__),
            "env": allowed_environment(os.environ),
        }
        return ring.note(Kind.INIT, msgspec.json.encode(told).decode(), step=-1)

    @guarded
    def _init_failed(self, error: BaseException) -> None:
        self.watch.error(error, kind="init")

    @guarded
    def _init_ends(self, at: int | None) -> None:
        ring = self.watch.ring
        if at is not None and ring is not None and dist.is_initialized():
            ring.set(Field.RANK, dist.get_rank())
            ring.set(Field.WORLD_SIZE, dist.get_world_size())
            ring.stamp(at, DONE, time.monotonic_ns())

    # -- groups -------------------------------------------------------------------------------------------------------

    def _wrap_helper(self, c10d: Any) -> None:
        original = c10d._new_process_group_helper

        @functools.wraps(original)
        def helper(*args: Any, **kwargs: Any) -> Any:
            self._making(args, kwargs)
            made = original(*args, **kwargs)
            try:
                pg, store = made
            except (TypeError, ValueError):  # another version of torch
                return made
            return self._made(c10d, pg, store, args, kwargs) or pg, store

        c10d._new_process_group_helper = helper

    @guarded
    def _making(self, args: Any, kwargs: Any) -> None:
        """Write down a group before it is made: where the ranks do not agree it may never be."""
        ring = self.watch.ring
        ranks = list(args[2] if len(args) > 2 else kwargs.get("global_ranks_in_group", ()))
        if ring is not None and ranks:
            self._num_made += 1
            at = next(iter(self.watch.stacks.uncached(sys._getframe(1))), "")
            told = {"ranks": ranks[:4096], "local": self._local, "at": at.partition(" @")[0]}
            ring.note(Kind.NEW_GROUP, msgspec.json.encode(told).decode(), step=self.watch.step, seq=self._num_made)

    @guarded
    def _made(self, c10d: Any, pg: Any, store: Any, args: Any, kwargs: Any) -> Any:
        """Put a recorded group in the place of a new one; None where it has to stay."""
        ring = self.watch.ring
        if ring is None:
            return None
        ranks = list(args[2] if len(args) > 2 else kwargs.get("global_ranks_in_group", ()))
        is_default = not ranks
        if not isinstance(pg, dist.ProcessGroup) or type(pg) is not dist.ProcessGroup:
            return None
        backend = str(c10d._world.pg_map[pg][0])
        if is_default:
            ranks = list(range(pg.size()))
        if backend == "fake" or dist.get_debug_level() == dist.DebugLevel.DETAIL:
            self.session.not_recorded("collectives", f"backend {backend}, debug level {dist.get_debug_level().name}")
            return None
        timeout = kwargs.get("timeout")
        label = self._label(ranks, is_default=is_default)
        seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else None
        told = {"label": label, "ranks": ranks[:4096], "backend": backend, "timeout_s": seconds}
        ring.note(Kind.GROUP, msgspec.json.encode(told).decode(), step=self.watch.step)
        if is_default and isinstance(timeout, timedelta):
            self.watch.watchdog.knows_timeout(timeout.total_seconds())
        return self._replace(c10d, pg, backend, label)

    def _label(self, ranks: list[int], *, is_default: bool) -> str:
        """Name a group alike on all its ranks: by them, and by how many of the same ranks there were before."""
        if is_default:
            before = self._labels["world"] = self._labels.get("world", 0) + 1
            return "world" if before == 1 else f"world#{before}"
        listed = ",".join(map(str, ranks)) if len(ranks) <= 64 else f"{ranks[0]},{ranks[1]},..,{ranks[-1]}"
        before = self._labels[listed] = self._labels.get(listed, 0) + 1
        return f"{{{listed}}}" if before == 1 else f"{{{listed}}}#{before}"

    def _replace(self, c10d: Any, pg: Any, backend: str, label: str) -> Any:
        outer = RecordedGroup(pg, self.watch, label)
        config = c10d.BackendConfig(c10d.Backend(backend) if ":" not in backend else backend)
        types = c10d.Backend.backend_type_map
        devices = {device.type for device in pg._device_types}
        for device, name in config.get_device_backend_map().items():
            if device in devices:
                kind = types.get(name, dist.ProcessGroup.BackendType.CUSTOM)
                outer._register_backend(torch.device(device), kind, pg._get_backend(torch.device(device)))
        names = set(config.get_device_backend_map().values())
        default = "nccl" if "nccl" in names else backend if ":" not in backend and backend in types else "gloo"
        outer._set_default_backend(types.get(default, dist.ProcessGroup.BackendType.CUSTOM))
        outer._set_group_name(pg.group_name)
        outer._set_group_desc(pg.group_desc)
        if pg.bound_device_id is not None:
            outer.bound_device_id = pg.bound_device_id
        world = c10d._world
        for table in (world.pg_map, world.pg_names, world.pg_group_ranks, world.pg_backend_config, world.pg_to_tag):
            if pg in table:
                table[outer] = table.pop(pg)
        for groups in world.tags_to_pg.values():
            groups[:] = [outer if group is pg else group for group in groups]
        c10d._unregister_process_group(pg.group_name)
        c10d._register_process_group(pg.group_name, outer)
        return outer

    def _wrap_new_group(self, c10d: Any) -> None:
        original = c10d.new_group
        parameters = inspect.signature(original)

        @functools.wraps(original)
        def new_group(*args: Any, **kwargs: Any) -> Any:
            given = parameters.bind(*args, **kwargs).arguments
            self._local = bool(given.get("use_local_synchronization", False))
            return original(*args, **kwargs)

        _put_in_place("new_group", original, new_group)

    def _wrap_batched(self, c10d: Any) -> None:
        """Hand batched transfers to the group itself where its backend merges them: torch asks for its exact type."""
        original = c10d.batch_isend_irecv

        @functools.wraps(original)
        def batch_isend_irecv(p2p_op_list: Any) -> Any:
            group = p2p_op_list[0].group or dist.group.WORLD if p2p_op_list else None
            if not isinstance(group, RecordedGroup) or not _merges(group, p2p_op_list[0].tensor):
                return original(p2p_op_list)
            given = [(op, op.group) for op in p2p_op_list]
            for op, _ in given:
                op.group = group.inner
            try:
                return original(p2p_op_list)
            finally:
                for op, before in given:
                    op.group = before

        _put_in_place("batch_isend_irecv", original, batch_isend_irecv)

    def _wrap_destroy(self, c10d: Any) -> None:
        """Let go of the groups themselves: kept until the interpreter ends, their threads would abort it."""
        original = c10d.destroy_process_group

        @functools.wraps(original)
        def destroy_process_group(group: Any = None) -> Any:
            if group is None:
                self.session.forward.models.settle(ends=True)
            inner = _inner_groups(c10d, group)
            original(group)
            for recorded in inner:
                recorded.inner = _Destroyed(recorded.inner.name())

        _put_in_place("destroy_process_group", original, destroy_process_group)

    # -- wrappers and loaders -----------------------------------------------------------------------------------------

    def _wrap_reducer(self) -> None:
        from torch.nn.parallel import DistributedDataParallel

        original = DistributedDataParallel.__init__

        @functools.wraps(original)
        def init(this: Any, *args: Any, **kwargs: Any) -> None:
            original(this, *args, **kwargs)
            self._reduces(this)

        DistributedDataParallel.__init__ = init  # type: ignore[method-assign]

    @guarded
    def _reduces(self, wrapper: Any) -> None:
        """Count the gradients that arrive at a reducer: who lacks one when the others wait for its bucket."""
        ring = self.watch.ring
        if ring is None:
            return
        ignored = set(getattr(wrapper, "parameters_to_ignore", ()))
        named = [(n, p) for n, p in wrapper.module.named_parameters() if p.requires_grad and n not in ignored]
        self.reduced = [name for name, _ in named]
        room = min(len(named), max(0, MAX_PARAMETERS - self._taken))
        told = {"first": self._taken, "names": [name for name, _ in named[: min(room, _MAX_NAMES)]]}
        told["dtypes"] = sorted({str(parameter.dtype).removeprefix("torch.") for _, parameter in named})
        told |= {
            key: bool(getattr(wrapper, key, False))
            for key in ("find_unused_parameters", "static_graph", "require_sync")
        }
        ring.note(Kind.REDUCER, msgspec.json.encode(told).decode(), step=self.watch.step)
        for index, (_, parameter) in enumerate(named[:room]):
            parameter.register_hook(self._counter(ring.memory, ring.arrivals_at(self._taken + index)))
        self._taken += room

    def _counter(self, memory: Any, at: int) -> Any:
        session = weakref.ref(self.session)
        unpack, pack = INT.unpack_from, INT.pack_into
        pid = os.getpid()

        def arrived(gradient: torch.Tensor) -> None:
            current = session()
            if current is None or current.dead or pid != current.pid:
                return
            step = current.step + 1
            if unpack(memory, at)[0] == step:
                pack(memory, at + 4, unpack(memory, at + 4)[0] + 1)
            else:
                pack(memory, at, step)
                pack(memory, at + 4, 1)
                if not unpack(memory, at + 8)[0]:
                    pack(memory, at + 8, step)

        return unserializable(arrived)

    def _wrap_loader(self) -> None:
        from torch.utils.data.dataloader import _BaseDataLoaderIter

        original = _BaseDataLoaderIter.__next__
        watch = self.watch

        @functools.wraps(original)
        def following(this: Any) -> Any:
            watch.begins(Kind.DATA)
            try:
                return original(this)
            finally:
                watch.ends(Kind.DATA)

        _BaseDataLoaderIter.__next__ = following  # type: ignore[method-assign]


class _Destroyed:
    """Stands for a group that was given up, so that a late call says so."""

    def __init__(self, backend: str) -> None:
        self._backend = backend

    def name(self) -> str:
        """Return the name that the backend had."""
        return self._backend

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"{name}: this process group has been destroyed")


def _inner_groups(c10d: Any, group: Any) -> list[RecordedGroup]:
    if group is None or group is dist.group.WORLD:
        return [each for each in c10d._world.pg_map if isinstance(each, RecordedGroup)]
    return [group] if isinstance(group, RecordedGroup) else []


def _merges(group: RecordedGroup, tensor: torch.Tensor) -> bool:
    return bool(getattr(group.inner._get_backend(tensor.device), "supports_coalescing", False))


def _number(names: tuple[str, ...], default: int) -> int:
    found = next((os.environ[name] for name in names if name in os.environ), "")
    return int(found) if found.isdecimal() else default
