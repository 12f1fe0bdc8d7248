"""A ``Callback`` for Lightning.

In a script::

    from ddparity.integrations.lightning import DdparityCallback

    trainer = lightning.Trainer(callbacks=[DdparityCallback()])

Without ``ddparity record`` in front of the command it does nothing. With it, on every rank: what ``self.log`` made of
an evaluation is held against the control's, what it made of training is recorded, and settings that the command line
does not show are facts of the trial.
"""

import functools
import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddparity.integrations import _logged
from ddparity.integrations._missing import missing
from ddparity.integrations._seals import Seals

if TYPE_CHECKING:
    from lightning.pytorch import Callback
else:

    def _base() -> type:
        """Return the class of callbacks of the Lightning that the script uses: it is installed under two names."""
        name = "lightning.pytorch"
        if name not in sys.modules and "pytorch_lightning" in sys.modules:
            name = "pytorch_lightning"
        try:
            return importlib.import_module(name).Callback
        except ImportError as error:
            raise missing("lightning", error) from error

    Callback = _base()

_SETTINGS = ("accumulate_grad_batches", "gradient_clip_val", "max_epochs", "max_steps", "precision")


class DdparityCallback(Callback):
    """Tells the recorder what Lightning logs and how it trains; seals checkpoints on request.

    Args:
        seal: Seal each checkpoint that the trainer has saved, and verify the one that it resumes from
            (``CheckpointDamaged`` is raised before anything of it is loaded). This works without a recording too.
        require_seal: Also refuse to resume from a checkpoint that was never sealed.
    """

    def __init__(self, *, seal: bool = False, require_seal: bool = False) -> None:
        super().__init__()
        self._seals = Seals(required=require_seal) if seal or require_seal else None
        self._seen: dict[str, Any] = {}

    # -- checkpoints ------------------------------------------------------------------------------------------------

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Be called before each load and after each save from now on; nothing has been loaded yet."""
        if self._seals is not None and "save_checkpoint" not in vars(trainer):
            trainer.save_checkpoint = _then_sealed(trainer, self._seals)
            trainer.strategy.load_checkpoint = _verified_first(trainer.strategy, self._seals)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Leave the trainer as it was."""
        if self._seals is not None:
            vars(trainer).pop("save_checkpoint", None)
            vars(trainer.strategy).pop("load_checkpoint", None)
            self._seals.tidy()

    # -- settings and numbers ---------------------------------------------------------------------------------------

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Make the settings facts of the trial."""
        self._seen = {}
        if not _logged.wanted():
            return
        found = dict(getattr(pl_module, "hparams", {}))
        found |= {name: getattr(trainer, name, None) for name in _SETTINGS}
        found["batch_size"] = getattr(trainer.train_dataloader, "batch_size", None)
        _logged.settings(found, words=["precision"])

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Take what was logged of a training step, as often as Lightning hands it to its loggers."""
        every = trainer.log_every_n_steps
        if _logged.wanted() and every and trainer.global_step % every == 0:
            self._take(trainer, evaluation=False)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Take what was logged of the epoch before: it is whole only now."""
        self._take(trainer, evaluation=False)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Take what was logged of the last epoch."""
        self._take(trainer, evaluation=False)

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Remember what was logged before."""
        self._take(trainer, evaluation=False)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Take the results of the validation."""
        self._take(trainer, evaluation=True)

    def on_test_start(self, trainer: Any, pl_module: Any) -> None:
        """Remember what was logged before."""
        self._take(trainer, evaluation=False)

    def on_test_end(self, trainer: Any, pl_module: Any) -> None:
        """Take the results of the test."""
        self._take(trainer, evaluation=True)

    def _take(self, trainer: Any, *, evaluation: bool) -> None:
        """Hand on what is new: Lightning keeps all it ever logged in one dictionary, and puts new tensors into it."""
        if not _logged.wanted() or trainer.sanity_checking:
            return
        now = dict(trainer.callback_metrics)
        new = {name: value for name, value in now.items() if self._seen.get(name) is not value}
        self._seen = now
        _logged.log(new, trainer.global_step, evaluation=evaluation)


def _then_sealed(trainer: Any, seals: Seals) -> Any:
    """Return the trainer's way to save, then the seal: Lightning has no hook after a save, nor before a load."""
    original = trainer.save_checkpoint

    @functools.wraps(original)
    def save(filepath: str | Path, *args: Any, **kwargs: Any) -> None:
        original(filepath, *args, **kwargs)  # ends with a barrier
        writer = trainer.strategy.checkpoint_io
        if any(kind.__name__ == "AsyncCheckpointIO" for kind in type(writer).__mro__):
            return  # what it has returned from is not written yet
        seals.saved(filepath, trainer.global_step)

    return save


def _verified_first(strategy: Any, seals: Seals) -> Any:
    """Return the strategy's way to load, after a look at the seal."""
    original = strategy.load_checkpoint

    @functools.wraps(original)
    def load(checkpoint_path: str | Path, *args: Any, **kwargs: Any) -> Any:
        seals.check(checkpoint_path)
        return original(checkpoint_path, *args, **kwargs)

    return load
