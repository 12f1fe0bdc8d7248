"""A peak that was measured on the device, as the user names it: a batch and bytes, or a trial recorded there."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ddparity._errors import UsageError

from ._fit import parse_size

if TYPE_CHECKING:
    from ddparity.judge._memory_run import MemoryRank


def read_measured(text: str, store: str | None) -> tuple[int, int]:
    """Return batch and bytes of ``32=51.5GiB``, or of the name of a recorded trial.

    Args:
        text: What the user wrote.
        store: Where trials are kept; None for the default.

    Raises:
        UsageError: It is neither, or the trial was recorded without a device.
    """
    batch, equals, held = text.partition("=")
    if equals:
        if not batch.strip().isdecimal() or int(batch) < 1:
            raise UsageError(f"--measured {text[:40]!r} is no batch with what it took. Write it as 32=51.5GiB.")
        return int(batch), parse_size(held)
    return _of_trial(text, store)


def _of_trial(name: str, store: str | None) -> tuple[int, int]:
    from ddparity.judge._memory_run import load_memory
    from ddparity.judge._run import load_run
    from ddparity.trials import Store

    run = load_run(Store.resolve(store).find(name))
    most = most_reserved(load_memory(run).values())
    batches = [
        len(row.ids)
        for steps in run.ranks.values()
        for found in steps.values()
        for row in found.samples
        if row.training
    ]
    if not most or not batches:
        raise UsageError(
            f"--measured {name!r} was recorded without a device, so that it does not say what one reserved. Record a "
            "few steps on the device, or write what was measured there, as 32=51.5GiB."
        )
    return max(batches), most


def most_reserved(ranks: "Iterable[MemoryRank]") -> int:
    """Return the most that a device's allocator had reserved on any rank, 0 if there was no device."""
    return max((step.reserved for rank in ranks for step in rank.steps if step.source == "cuda"), default=0)
