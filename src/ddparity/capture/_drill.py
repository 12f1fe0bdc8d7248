"""What a preflight changes of a launch: the time-out of its process groups, the arguments of its wrapper."""

import functools
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
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **{**kwargs, **given})

    return call
