"""One line for Accelerate.

In a script::

    from ddparity.integrations.accelerate import watch

    accelerator = watch(Accelerator(...))

Without ``ddparity record`` in front of the command it does nothing. With it, on every rank: what ``accelerator.log``
gets after an evaluation is held against the control's, the rest is recorded, and the configuration of the run is one of
the trial's facts. It is no tracker, because Accelerate calls those on the main process alone: that a number is of one
rank's share is seen only where all ranks tell theirs.
"""

import functools
from typing import Any, TypeVar

from ddparity.capture._api import current_session
from ddparity.integrations import _logged
from ddparity.integrations._missing import missing
from ddparity.integrations._seals import Seals

try:
    from accelerate.state import AcceleratorState, GradientState
except ImportError as error:
    raise missing("accelerate", error) from error

T = TypeVar("T")


def watch(accelerator: T, *, seal: bool = False, require_seal: bool = False) -> T:
    """Tell the recorder what this ``Accelerator`` logs and how it is configured; seal its states on request.

    Args:
        accelerator: The script's; it is changed in place and returned.
        seal: Seal each state that ``save_state`` has saved (after a barrier: every rank writes a file of its own), and
            verify the one that ``load_state`` is about to load (``CheckpointDamaged`` is raised before that). This
            works without a recording too.
        require_seal: Also refuse to load a state that was never sealed.
    """
    watched: Any = accelerator
    if seal or require_seal:
        _seal_states(watched, Seals(required=require_seal))
    if _logged.wanted():
        found = {"mixed_precision": AcceleratorState().mixed_precision}
        _logged.settings(found | {"gradient_accumulation_steps": GradientState().num_steps}, ["mixed_precision"])
        watched.log = _told_first(watched.log, _numbers)
        watched.init_trackers = _told_first(watched.init_trackers, _configuration)
    return accelerator


def _told_first(original: Any, tell: Any) -> Any:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        tell(*args, **kwargs)
        return original(*args, **kwargs)

    return call


def _numbers(values: Any = None, step: int | None = None, *args: Any, **kwargs: Any) -> None:
    """Take what is logged: results of an evaluation, if nothing has trained since."""
    session = current_session()
    if isinstance(values, dict):
        _logged.log(values, step, evaluation=session is not None and session.evaluating)


def _configuration(project_name: Any = None, config: Any = None, *args: Any, **kwargs: Any) -> None:
    if isinstance(config, dict):
        _logged.settings(config)


def _seal_states(accelerator: Any, seals: Seals) -> None:
    original = accelerator.save_state

    @functools.wraps(original)
    def save_state(*args: Any, **kwargs: Any) -> Any:
        folder = original(*args, **kwargs)
        accelerator.wait_for_everyone()
        if folder is not None:
            seals.saved(folder, None)
        return folder

    accelerator.save_state = save_state
    accelerator.register_load_state_pre_hook(lambda models, folder: seals.check(folder))
