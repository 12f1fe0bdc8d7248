"""A ``TrainerCallback`` for Transformers' ``Trainer`` and those built on it, such as TRL's.

In a script::

    from ddparity.integrations.transformers import DdparityCallback

    trainer = Trainer(model, arguments, callbacks=[DdparityCallback()], ...)

Without ``ddparity record`` in front of the command it does nothing. With it, on every rank: the results of an
evaluation are held against the control's, whatever ``Trainer.log`` gets is recorded, and settings that the command line
does not show are facts of the trial.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddparity.integrations import _logged
from ddparity.integrations._missing import missing
from ddparity.integrations._seals import Seals

if TYPE_CHECKING:
    TrainerCallback = object
else:
    try:
        from transformers import TrainerCallback
    except ImportError as error:
        raise missing("transformers", error) from error

_EVALUATED = ("eval_", "test_")
_WORDS = ("lr_scheduler_type", "optim", "mixed_precision")
_SETTINGS = (
    *("per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps", "max_steps"),
    *("num_train_epochs", "learning_rate", "weight_decay", "warmup_steps", "max_grad_norm", "label_smoothing_factor"),
    *("bf16", "fp16", "tf32", "torch_compile", "gradient_checkpointing", "average_tokens_across_devices"),
    *("seed", "data_seed", "dataloader_num_workers", "dataloader_drop_last", "adam_beta1", "adam_beta2"),
    *("adam_epsilon", "neftune_noise_alpha", *_WORDS),
)


class DdparityCallback(TrainerCallback):
    """Tells the recorder what the Trainer logs and how it trains; seals checkpoints on request.

    Args:
        seal: Seal each checkpoint that the Trainer has saved (after a barrier: every rank writes a file of its own),
            and verify the one that it resumed from before the first step. The Trainer tells no callback before it has
            loaded one; call ``ddparity.verify_checkpoint(path)`` before ``trainer.train`` to be earlier than that.
        require_seal: Also refuse to go on from a checkpoint that was never sealed.
    """

    def __init__(self, *, seal: bool = False, require_seal: bool = False) -> None:
        self._seals = Seals(required=require_seal) if seal or require_seal else None
        self._logged: tuple[int, set[str]] = (-1, set())

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Make the settings facts of the trial; verify what the training was resumed from."""
        if _logged.wanted():
            found = {name: getattr(args, name, None) for name in _SETTINGS}
            _logged.settings({name: getattr(value, "value", value) for name, value in found.items()}, _WORDS)
        if self._seals is not None and state.global_step > 0:
            self._seals.check(_resumed_from(args, state))

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Take what the Trainer logs."""
        if not _logged.wanted() or not logs:
            return
        evaluated = {name: value for name, value in logs.items() if name.startswith(_EVALUATED)}
        _logged.log(evaluated, state.global_step, evaluation=True)
        rest = {name: value for name, value in logs.items() if name not in evaluated}
        _logged.log(rest, state.global_step, evaluation=False)
        self._logged = (state.global_step, set(evaluated))

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **kwargs: Any) -> None:
        """Take the results of an evaluation that were not logged."""
        if not _logged.wanted() or not metrics:
            return
        step, names = self._logged
        known = names if step == state.global_step else set[str]()
        new = {name: value for name, value in metrics.items() if name not in known}
        _logged.log(new, state.global_step, evaluation=True)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Seal the checkpoint that was saved."""
        if self._seals is None:
            return
        import torch.distributed as dist

        if dist.is_available() and dist.is_initialized():
            dist.barrier()
        self._seals.saved(_folder(args, state), state.global_step)


def _folder(args: Any, state: Any) -> Path:
    return Path(args.output_dir) / f"checkpoint-{state.global_step}"


def _resumed_from(args: Any, state: Any) -> Path:
    """Return the folder that training goes on from: the one that was named, else that of this step."""
    named = args.resume_from_checkpoint
    return Path(named) if isinstance(named, str) and Path(named).is_dir() else _folder(args, state)
