"""Commands that record a trial: with the options that the trial in question was, or has to be, recorded with."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ddparity.trace import TrialFacts

from ._run import Run

_MAX_NAME = 56


@dataclass(frozen=True)
class Options:
    """The options of ``ddparity record`` that change what a training computes, or how much of it is recorded."""

    dtype: str | None = None
    neutral_dropout: bool = False
    bank: bool = False
    pinned: bool = False
    steps: str = "3"
    level: str = "activations"
    batch_dim: int = 0
    stop_after_steps: int | None = None

    @classmethod
    def of(cls, facts: TrialFacts, *, bank: bool = False) -> "Options":
        """Return the options that a trial was recorded with; ``bank`` where another one is pinned to its batches."""
        return cls(
            dtype=facts.dtype,
            neutral_dropout=facts.neutral_dropout,
            bank=bank,
            pinned=facts.pinned is not None,
            steps=facts.steps,
            level=facts.level,
            batch_dim=facts.batch_dim,
            stop_after_steps=facts.stop_after_steps,
        )

    @property
    def words(self) -> list[str]:
        """The options as they stand on the command line, those that are not as they are by default."""
        words = [_flag(name) for name in ("neutral_dropout", "bank", "pinned") if getattr(self, name)]
        for name in ("dtype", "steps", "level", "batch_dim", "stop_after_steps"):
            value = getattr(self, name)
            if value != getattr(Options, name):
                words += [_flag(name), str(value)]
        return words


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def record_command(name: str, command: Sequence[str], options: Options, *, control: bool = False) -> str:
    """Return the command that records a training command as a trial."""
    words = ["ddparity", "record", *["--control"] * control, *options.words, "--name", name, "--", *command]
    return shlex.join(words)


def in_float64(control: Run, candidate: Run) -> str:
    """Return the commands that record both sides in float64, where rounding hides nothing, and compare them."""
    runs = control.trial.facts.floors
    there = runs is not None and runs.float64 is not None
    return _again(control, candidate, "float64", control_is_there=there, dtype="float64")


def without_dropout(control: Run, candidate: Run) -> str:
    """Return the commands that record both sides with random modules switched off, and compare them."""
    if control.trial.facts.neutral_dropout and candidate.trial.facts.neutral_dropout:
        return "they are drawn by hand; draw them where batches are made, and hand both through ddparity.feed"
    return _again(control, candidate, "neutral", neutral_dropout=True)


def _again(control: Run, candidate: Run, suffix: str, *, control_is_there: bool = False, **changes: Any) -> str:
    ours, theirs = control.trial.facts, candidate.trial.facts
    mine = ours.name if control_is_there else f"{ours.name[:_MAX_NAME]}-{suffix}"
    other = f"{theirs.name[:_MAX_NAME]}-{suffix}"
    first = record_command(
        mine, ours.command, replace(Options.of(ours, bank=theirs.pinned is not None), **changes), control=True
    )
    second = record_command(other, theirs.command, replace(Options.of(theirs), **changes))
    commands = [second] if control_is_there else [first, second]
    return " && ".join([*commands, f"ddparity compare {mine} {other}"])
