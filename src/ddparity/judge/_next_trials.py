"""The next trials: from what changed between two trials, the ones in between that change one variable each."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from ddparity.trace import Trial, read_trial

from ._command import Command
from ._facts import command_of, flat_facts
from ._recording import Options, record_command
from ._varied import CHANGED_CODE, CODE, LAUNCHER, MICRO, WORLD, Variable, is_argument, varied_facts
from ._verdict import Varied

_MAX_SLUG = 24


class VariablePlan(msgspec.Struct, kw_only=True):
    """One variable and the facts that belong to it."""

    name: str
    facts: list[Varied]


class PlannedTrial(msgspec.Struct, kw_only=True):
    """One trial to record, and what to hold against what.

    Attributes:
        name: Its name; that of the candidate for the last one, which is recorded already.
        variable: What changes against ``control``.
        control: Name of the trial it is held against.
        record: The command that records it; empty where it is there already.
        compare: The command that judges it.
        note: What has to be changed by hand first, if anything.
    """

    name: str
    variable: str
    control: str
    record: str = ""
    compare: str
    note: str = ""


class TrialPlan(msgspec.Struct, kw_only=True):
    """The answer of ``ddparity plan``."""

    schema: int = 1
    control: str
    candidate: str
    confounded: bool
    variable: str | None
    variables: list[VariablePlan]
    trials: list[PlannedTrial]

    @property
    def commands(self) -> list[str]:
        """Every command in order; what has to be done by hand stands before it as a shell comment."""
        return list(_commands(self.trials))


def plan_trials(control_dir: Path, candidate_dir: Path) -> TrialPlan:
    """Say which trials tell the variables apart that changed between two trials.

    Raises:
        TraceError: If a file of either trial is missing or corrupt.
    """
    return plan_between(read_trial(control_dir), read_trial(candidate_dir))


def plan_between(control: Trial, candidate: Trial) -> TrialPlan:
    """Say which trials tell the variables apart that changed between two trials that have been read."""
    varied, found = varied_facts(control, candidate)
    trials = _steps(control, candidate, found) if len(found) > 1 else _processes(control, candidate, found)
    return TrialPlan(
        control=control.facts.name,
        candidate=candidate.facts.name,
        confounded=len(found) > 1,
        variable=found[0].name if len(found) == 1 else None,
        variables=[VariablePlan(name=v.name, facts=[f for f in varied if f.variable in v.facts]) for v in found],
        trials=trials,
    )


def _commands(trials: list[PlannedTrial]) -> Iterator[str]:
    for trial in trials:
        if trial.note:
            yield f"# {trial.note}"
        if trial.record:
            yield trial.record
        yield trial.compare


def _steps(control: Trial, candidate: Trial, found: list[Variable]) -> list[PlannedTrial]:
    """Return one trial a variable, each with one more change than the one before; the last is the candidate."""
    command, target = command_of(control), command_of(candidate)
    trials: list[PlannedTrial] = []
    before, options = control.facts.name, Options.of(control.facts)
    for index, variable in enumerate(found):
        last = index == len(found) - 1
        command = _changed(command, target, variable, flat_facts(candidate))
        options = _options(options, variable, candidate)
        name = candidate.facts.name if last else f"{candidate.facts.name[:40]}-{index + 1}-{_slug(variable.name)}"
        trials.append(
            PlannedTrial(
                name=name,
                variable=variable.name,
                control=before,
                record="" if last else record_command(name, command.words, options, control=True),
                compare=f"ddparity compare {before} {name}",
                note="" if last else _by_hand(variable, candidate),
            )
        )
        before = name
    return trials


def _changed(command: Command, target: Command, variable: Variable, theirs: dict[str, Any]) -> Command:
    """Return ``command`` with one variable as ``target`` has it."""
    if variable.name in (WORLD, LAUNCHER):
        command = Command(env=command.env, launcher=target.launcher, target=command.target, pieces=command.pieces)
    if variable.name == CODE and target.target:
        command = Command(env=command.env, launcher=command.launcher, target=target.target, pieces=command.pieces)
    for fact in variable.facts:
        if is_argument(fact):
            command = command.with_argument(fact, target)
        elif fact.startswith("env:"):
            command = command.with_env(fact.removeprefix("env:"), theirs.get(fact))
    return command


def _options(options: Options, variable: Variable, candidate: Trial) -> Options:
    """Return the recorder's options with one variable as the candidate has it, if it is one of them."""
    name = variable.name.removeprefix("record:")
    return options if name == variable.name else replace(options, **{name: getattr(candidate.facts, name)})


def _by_hand(variable: Variable, candidate: Trial) -> str:
    """Say what no command line changes."""
    if variable.name == CODE:
        return (
            f"with the code of {candidate.facts.name}"
            if {"script", "git_commit", CHANGED_CODE} & set(variable.facts)
            else ""
        )
    if variable.name in (WORLD, LAUNCHER, MICRO) or is_argument(variable.name):
        return ""
    if variable.name.startswith(("env:", "record:")):
        return ""
    if variable.name == "seed":
        return "seed both runs alike first"
    return f"with {variable.name} as in {candidate.facts.name}"


def _processes(control: Trial, candidate: Trial, found: list[Variable]) -> list[PlannedTrial]:
    """Return the trials between one process and many: one process under the launcher, then two."""
    if len(found) != 1 or found[0].name != WORLD or control.world_size != 1 or candidate.world_size < 2:
        return []
    trials = []
    for num in (1, 2):
        command = _launched(control, candidate, found[0], num)
        if command is None or num >= candidate.world_size:
            continue
        name = f"{candidate.facts.name[:60]}-nproc{num}"
        trials.append(
            PlannedTrial(
                name=name,
                variable=LAUNCHER if num == 1 else WORLD,
                control=control.facts.name,
                record=record_command(name, command.words, Options.of(candidate.facts)),
                compare=f"ddparity compare {control.facts.name} {name}",
            )
        )
    return trials


def _launched(control: Trial, candidate: Trial, variable: Variable, num: int) -> Command | None:
    """Return the candidate's command with ``num`` processes; None where a batch does not divide."""
    command = command_of(candidate).with_num_processes(num)
    whole = command_of(control).arguments
    for fact in variable.facts:
        if command is None or not is_argument(fact):
            continue
        text = str(whole.get(fact))
        if text == "1":  # the number of processes itself
            command = command.with_value(fact, str(num))
        elif text.isdigit() and int(text) % num == 0:
            command = command.with_value(fact, str(int(text) // num))
        else:
            return None
    return command


def _slug(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-")[:_MAX_SLUG] or "change"
