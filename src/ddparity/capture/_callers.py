"""Who calls: what only the Python stack tells of a module call."""

import sys
from typing import Any

from torch.nn.modules import module as torch_module

LOADER = "torch/utils/data/_utils/fetch.py"
CHECKPOINT = "torch/utils/checkpoint.py"
_MAX_FRAMES = 60


def called_from() -> str:
    """Return which of torch's own files a root call comes from, if it is a loader's or that of checkpointing."""
    frame = sys._getframe(1)
    for _ in range(_MAX_FRAMES):
        if frame is None:
            break
        for known in (LOADER, CHECKPOINT):
            if frame.f_code.co_filename.endswith(known):
                return known
        frame = frame.f_back
    return ""


def inside_checkpoint() -> bool:
    """Whether what runs was called by activation checkpointing."""
    return called_from() == CHECKPOINT


def keywords() -> Any:
    """Return the keyword arguments that a module is called with.

    Global pre-hooks are not given keyword arguments, and a hook on the module itself would be pickled and copied
    with it; so they are read from the frame of ``Module._call_impl`` that calls the hook.
    """
    frame = sys._getframe(1)
    for _ in range(8):
        if frame is None:
            break
        if frame.f_code.co_filename == torch_module.__file__:
            return frame.f_locals.get("kwargs", {})
        frame = frame.f_back
    return dict[str, Any]()
