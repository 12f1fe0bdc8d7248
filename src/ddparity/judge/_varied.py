"""What differs between two trials besides their results: every fact, and how many of them are free choices."""

from typing import Any

from ddparity.trace import Trial

from ._verdict import Varied

_FOLLOW_WORLD_SIZE = {"backend", "master", "launcher", "batch_shape", "num_threads", "environment"}
"""Facts that a change of the world size brings along; on their own they are variables like any other."""
_LAUNCHER_MODULES = {"torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch"}


def varied_facts(control: Trial, candidate: Trial) -> tuple[list[Varied], bool]:
    """List the facts that differ, and say whether more than one of them is a variable of its own."""
    ours, theirs = _facts(control), _facts(candidate)
    keys = [key for key in dict.fromkeys([*ours, *theirs]) if ours.get(key) != theirs.get(key)]
    varied = [Varied(variable=key, control=ours.get(key), candidate=theirs.get(key)) for key in keys]
    names = {v.variable for v in varied}
    if "world_size" in names:
        names -= _FOLLOW_WORLD_SIZE
        if "arguments" in names and _scaled_with_world(ours, theirs):
            names.discard("arguments")
    return varied, len(names) > 1


def _facts(trial: Trial) -> dict[str, Any]:
    launcher, target, arguments = _split_command(trial.facts.command, trial.facts.script)
    facts: dict[str, Any] = {"world_size": trial.world_size, "launcher": launcher}
    facts |= {"target": target, "arguments": arguments, "script": trial.facts.script_sha256}
    facts["git_commit"] = trial.facts.git.commit
    facts |= {f"env:{name}": value for name, value in sorted(trial.facts.env.items())}
    if not trial.ranks:
        return facts
    rank = trial.ranks[0].facts
    facts |= {"backend": rank.backend, "device": f"{rank.device} {rank.device_name}".strip()}
    facts["batch_shape"] = rank.batch_shapes
    facts["seed"] = rank.seeds.get("torch")
    facts |= {f"version:{name}": version for name, version in rank.versions.items()}
    facts |= {name if name == "num_threads" else f"setting:{name}": v for name, v in rank.settings.items()}
    return facts


def _split_command(command: list[str], script: str | None) -> tuple[str, str, list[str]]:
    """Split a command into launcher, the script or module that trains, and its arguments."""
    for index, word in enumerate(command):
        if word == "-m" and index + 1 < len(command) and command[index + 1] not in _LAUNCHER_MODULES:
            return " ".join(command[:index]), command[index + 1], command[index + 2 :]
        if word.endswith(".py") or (script is not None and word == script):
            return " ".join(command[:index]), word, command[index + 1 :]
    return (command[0] if command else ""), "", command[1:]


def _scaled_with_world(ours: dict[str, Any], theirs: dict[str, Any]) -> bool:
    """Whether arguments differ only in numbers that the world size divides, as a batch size a rank does."""
    ratio = theirs["world_size"] / max(ours["world_size"], 1)
    a, b = ours["arguments"], theirs["arguments"]
    if len(a) != len(b):
        return False
    pairs = [(x, y) for x, y in zip(a, b, strict=True) if x != y]
    return all(x.isdigit() and y.isdigit() and int(x) == int(y) * ratio for x, y in pairs)
