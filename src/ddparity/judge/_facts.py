"""The facts of a trial, flattened: one name, one value."""

from typing import Any

from ddparity.trace import Trial

from . import _command

_RECORDER = ("dtype", "neutral_dropout")
"""Options of ``ddparity record`` that change the numbers."""
HYPERPARAMETER = "hyperparameter:"
"""Before the name of a setting that a framework's callback told."""
_CHANCE = frozenset({"env:MASTER_PORT", "env:SLURM_JOB_ID", "env:SLURM_STEP_ID", "env:TORCHELASTIC_RUN_ID"})
"""What is another with every run and chosen by nobody."""


def command_of(trial: Trial) -> _command.Command:
    """Return the trial's command in its parts."""
    return _command.split(trial.facts.command, trial.facts.script)


def flat_facts(trial: Trial) -> dict[str, Any]:
    """Return every fact of a trial that may differ between two; arguments stand under their own names."""
    command = command_of(trial)
    facts: dict[str, Any] = {"world_size": trial.world_size}
    facts |= _command.launcher_facts(command.launcher)
    facts["target"] = " ".join(command.target)
    facts["script"] = trial.facts.script_sha256
    facts["git_commit"] = trial.facts.git.commit
    facts |= command.arguments
    env = trial.facts.env | {word.partition("=")[0]: word.partition("=")[2] for word in command.env}
    facts |= {f"env:{name}": value for name, value in sorted(env.items())}
    facts |= {f"record:{name}": getattr(trial.facts, name) or None for name in _RECORDER}
    facts |= _rank_facts(trial)
    return {name: value for name, value in facts.items() if value is not None and name not in _CHANCE}


def _rank_facts(trial: Trial) -> dict[str, Any]:
    if not trial.ranks:
        return {}
    rank = trial.ranks[0].facts
    facts: dict[str, Any] = {"backend": rank.backend, "device": f"{rank.device} {rank.device_name}".strip()}
    facts |= {f"batch_shape:{root}" if root else "batch_shape": shape for root, shape in rank.batch_shapes.items()}
    facts["seed"] = rank.seeds.get("torch")
    facts |= {f"version:{name}": version for name, version in rank.versions.items()}
    facts |= {name if name == "num_threads" else f"setting:{name}": v for name, v in rank.settings.items()}
    facts |= {f"{HYPERPARAMETER}{name}": value for name, value in rank.hyperparameters.items()}
    return facts
