"""Interrupting a training, letting it resume, and running it through: the three trials of ``ddparity recover``.

The interrupted run comes first, so that the checkpoint it leaves is the only one there is. Runs are kept apart by
``{run}`` in the command, or by a folder of checkpoints that is put out of the way in between.
"""

import shlex
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from ddparity._errors import CommandFailed, UsageError
from ddparity.judge import Resumption, judge_resumption
from ddparity.trace import Event, read_trial
from ddparity.trace._schema import TrialFacts
from ddparity.trials._launch import outcome
from ddparity.trials._runner import rank_folders, record, uninterrupted
from ddparity.trials._spec import RecordSpec
from ddparity.trials._store import Store

RUN = "{run}"
SAFE_STORE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
WINDOW = 32
"""Steps before the interruption in which the checkpoint may have been saved."""
_LAUNCHERS = ("torchrun", "torch.distributed.run", "torch.distributed.launch")


@dataclass(frozen=True, kw_only=True)
class RecoverSpec:
    """What to interrupt, where, and how it resumes.

    Attributes:
        command: The training command; ``{run}`` in it becomes ``parted`` or ``whole``.
        store: Where the trials go.
        name: Beginning of their names.
        at_step: Steps after which the first run is interrupted.
        kill: Rank that is killed there (SIGKILL); None: all ranks end by themselves.
        num_steps: Steps after the interruption that are compared.
        resume_args: What the command needs in addition to resume.
        checkpoints: Folder that the script saves into, empty or absent at the start; moved away between the runs.
        keep: Whether those folders stay.
        timeout_s: Seconds after which one of the runs is ended, or None.
        quiet: Say nothing, and keep the output of the commands in the trials.
    """

    command: list[str]
    store: Store
    name: str
    at_step: int
    kill: int | None = None
    num_steps: int = 3
    resume_args: list[str] = field(default_factory=list)
    checkpoints: Path | None = None
    keep: bool = False
    timeout_s: float | None = None
    quiet: bool = False

    def __post_init__(self) -> None:
        if self.at_step < 1:
            raise UsageError(f"--at-step {self.at_step} cannot be used: at least one step has to be done before it.")
        if self.num_steps < 1:
            raise UsageError(f"--compare-steps {self.num_steps} cannot be used: at least one step has to be compared.")
        if not any(RUN in word for word in self.command) and self.checkpoints is None:
            raise UsageError(
                "The uninterrupted run must not find the checkpoints of the interrupted one. Put {run} into the path "
                "that the command saves to (--save ckpt-{run}), or name the folder: --checkpoints DIR."
            )
        if self.checkpoints is not None and self.checkpoints.is_dir() and any(self.checkpoints.iterdir()):
            raise UsageError(
                f"--checkpoints {str(self.checkpoints)!r} is not empty. Name a folder that the script fills."
            )


@dataclass(frozen=True, kw_only=True)
class Recovery:
    """What became of it: the answer, the three trials, and what is to be said of the command."""

    answer: Resumption
    parted: str
    resumed: str
    whole: str
    notes: list[str]


def recover(spec: RecoverSpec, say: Callable[[str], None] = lambda _: None) -> Recovery:
    """Run the command three times - until the interruption, on from its checkpoint, and through - and compare.

    Raises:
        CommandFailed: A run did not come as far as it should.
    """
    last = spec.at_step + spec.num_steps
    how = "ends" if spec.kill is None else f"rank {spec.kill} is killed"
    say(f"1/3  until step {spec.at_step}, where {'it ' if spec.kill is None else ''}{how}")
    parted = _record(spec, "parted", [], steps="1", interrupt_at=spec.at_step, interrupt_rank=spec.kill)
    _check_reached(spec, parted, spec.at_step)
    say("2/3  the same command again: it should resume from its own checkpoint")
    resumed = _record(
        spec, "resumed", spec.resume_args, steps=f"0:{WINDOW + spec.num_steps}", stop=WINDOW + spec.num_steps
    )
    _put_away(spec, "parted")
    say("3/3  the same training without an interruption")
    first = max(0, spec.at_step - WINDOW)
    windows = f"{first}:{last}" if first == 0 else f"0:1,{first}:{last}"
    whole = _record(spec, "whole", [], steps=windows, stop=last)
    _put_away(spec, "whole")
    _check_reached(spec, whole, last)
    answer = judge_resumption(
        spec.store.path(whole.id), spec.store.path(resumed.id), at_step=spec.at_step, num_steps=spec.num_steps
    )
    return Recovery(
        answer=answer, parted=parted.id, resumed=resumed.id, whole=whole.id, notes=restart_notes(spec.command)
    )


def restart_notes(command: list[str]) -> list[str]:
    """Say where torchrun itself would restart the ranks with settings that mostly fail.

    Measured with torch 2.13 and gloo: after a SIGKILL 6 of 16 restarts worked with the static rendezvous, and 19 of 19
    with c10d or ``--standalone`` and ``TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1``.
    """
    words = [word.replace("_", "-") for word in command]
    if not any(Path(word).name in _LAUNCHERS for word in command):
        return []
    restarts = _value(words, "--max-restarts")
    if restarts in (None, "0"):
        return []
    dynamic = "--standalone" in words or _value(words, "--rdzv-backend") == "c10d"
    safe = any(word == f"{SAFE_STORE}=1" for word in command)
    if dynamic and safe:
        return []
    advice = f"{SAFE_STORE}=1 torchrun --rdzv-backend c10d --rdzv-endpoint localhost:0 --max-restarts {restarts}"
    return [
        f"recover starts the command anew by itself, with {SAFE_STORE}=1. Its own --max-restarts {restarts} would most "
        f"likely not bring it back after a kill (measured: 6 of 16 restarts worked); use {advice} ... (19 of 19)"
    ]


def _value(words: list[str], option: str) -> str | None:
    for number, word in enumerate(words):
        if word == option:
            return words[number + 1] if number + 1 < len(words) else None
        if word.startswith(f"{option}="):
            return word.partition("=")[2]
    return None


def _without_restarts(command: list[str]) -> list[str]:
    """Return the command with torchrun's own restarts switched off: the runs are started anew by ``recover``."""
    found = list(command)
    for number, word in enumerate(found):
        plain = word.replace("_", "-")
        if plain == "--max-restarts" and number + 1 < len(found):
            found[number + 1] = "0"
        elif plain.startswith("--max-restarts="):
            found[number] = "--max-restarts=0"
    return found


def _record(
    spec: RecoverSpec,
    kind: str,
    more: list[str],
    *,
    steps: str,
    stop: int | None = None,
    interrupt_at: int | None = None,
    interrupt_rank: int | None = None,
) -> TrialFacts:
    run = "whole" if kind == "whole" else "parted"
    command = [word.replace(RUN, run) for word in [*_without_restarts(spec.command), *more]]
    facts = record(
        RecordSpec(
            command=["env", f"{SAFE_STORE}=1", *command],
            store=spec.store,
            name=f"{spec.name}-{kind}",
            prove=False,
            steps=steps,
            stop_after_steps=stop,
            interrupt_at=interrupt_at,
            interrupt_rank=interrupt_rank,
            timeout_s=spec.timeout_s,
            quiet=spec.quiet,
        )
    )
    uninterrupted(facts)
    if not rank_folders(spec.store.path(facts.id)):
        raise CommandFailed(
            f"The {kind} run ended ({outcome(facts)}) and recorded nothing: {shlex.join(command)}. "
            "Run it without ddparity first."
        )
    return facts


def _check_reached(spec: RecoverSpec, facts: TrialFacts, steps: int) -> None:
    trial = read_trial(spec.store.path(facts.id))
    done = min(sum(event.kind == Event.STEP for event in rank.events) for rank in trial.ranks)
    if done < steps:
        raise CommandFailed(
            f"{facts.name} came to step {done} only ({outcome(facts)}), and not to step {steps}. "
            f"Give an earlier --at-step, or see what it said: {spec.store.path(facts.id)}"
        )


def _put_away(spec: RecoverSpec, run: str) -> None:
    folder = spec.checkpoints
    if folder is None or not folder.is_dir():
        return
    if spec.keep:
        folder.rename(folder.with_name(f"{folder.name}-{run}"))
    else:
        shutil.rmtree(folder)
