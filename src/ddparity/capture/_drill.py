"""What a preflight changes of a launch: the time-out of its process groups, the arguments of its wrapper."""

import functools
import inspect
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch

from ddparity.trace import CaptureConfig


def install_drill(config: CaptureConfig) -> None:
    """Set what the configuration names in place of the script's own; nothing happens if it names nothing."""
    distributed: Any = torch.distributed
    if config.group_timeout_s is not None and distributed.is_available():
        limit = timedelta(seconds=config.group_timeout_s)
        for name in ("init_process_group", "new_group"):
            wrapped = _with(getattr(distributed, name), {"timeout": limit})
            for owner in (distributed, distributed.distributed_c10d):
                setattr(owner, name, wrapped)
    if config.wrapper and distributed.is_available():
        wrapper: Any = torch.nn.parallel.DistributedDataParallel
        wrapper.__init__ = _with(wrapper.__init__, config.wrapper)


def _with(original: Callable[..., Any], given: dict[str, Any]) -> Callable[..., Any]:
    """Return a function that is called with ``given``, whatever its caller gave for these, by name or by position."""
    places = list(inspect.signature(original).parameters)

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        by_place = [given.get(name, value) for name, value in zip(places, args, strict=False)]
        taken = set(places[: len(args)])
        rest = {name: value for name, value in given.items() if name not in taken}
        return original(*by_place, *args[len(places) :], **{**kwargs, **rest})

    return call
