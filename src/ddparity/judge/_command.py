"""A training command taken apart: environment, launcher, what trains, and its arguments flag by flag.

Trials that differ by one argument are told apart by it, and the command of the trial between two others is put
together from the pieces of both.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

_TORCHRUN = ("torch.distributed.run", "torch.distributed.launch")
_LAUNCHER_MODULES = {*_TORCHRUN, "accelerate.commands.launch", "deepspeed.launcher.runner"}
_PYTHON = re.compile(r"(?:python|pypy)(?:\d+(?:\.\d+)?)?\Z")
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_OVERRIDE = re.compile(r"[+~]{0,2}[A-Za-z_][\w./@:-]*=")
"""``key=value`` without dashes, as Hydra takes it."""
POSITIONAL = "argument "
"""What the names of positional arguments begin with; a number follows."""
_NUMBER = re.compile(r"-(?:\d|\.\d)")
_NUM_PROCESSES = {"nproc-per-node", "nproc", "num-processes", "num-gpus", "np", "n", "ntasks", "nnodes", "num-machines"}
_MEETING_POINT = {"standalone", "master-addr", "master-port", "node-rank", "log-dir", "r", "redirects", "tee", "t"}


@dataclass(frozen=True)
class Piece:
    """One flag with its values, or one positional argument: ``name`` and the words of it as they were given."""

    name: str
    words: tuple[str, ...]

    @property
    def value(self) -> str | bool:
        """The value in one text; True for a flag without one."""
        first, *rest = self.words
        if first == self.name:
            return " ".join(rest) if rest else True
        return first if self.name.startswith(POSITIONAL) else first.partition("=")[2]


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command in its parts, each a list of words as they were given."""

    env: tuple[str, ...]
    launcher: tuple[str, ...]
    target: tuple[str, ...]
    pieces: tuple[Piece, ...]

    @property
    def words(self) -> list[str]:
        """The whole command again."""
        prefix = ("env", *self.env) if self.env else ()
        return [*prefix, *self.launcher, *self.target, *(word for piece in self.pieces for word in piece.words)]

    @property
    def arguments(self) -> dict[str, str | bool | list[str | bool]]:
        """Every argument by its name; one that comes more than once has a list of values."""
        found: dict[str, list[str | bool]] = {}
        for piece in self.pieces:
            found.setdefault(piece.name, []).append(piece.value)
        return {name: values[0] if len(values) == 1 else values for name, values in found.items()}

    def with_argument(self, name: str, other: "Command") -> "Command":
        """Return this command with one argument as the other command has it: changed, added or left out."""
        theirs = [piece for piece in other.pieces if piece.name == name]
        mine: list[Piece] = []
        for piece in self.pieces:
            if piece.name != name:
                mine.append(piece)
            elif theirs:
                mine += theirs
                theirs = list[Piece]()
        return replace(self, pieces=(*mine, *theirs))

    def with_value(self, name: str, value: str) -> "Command":
        """Return this command with another value of an argument that it has once."""
        changed = [replace(p, words=_with_value(p, value)) if p.name == name else p for p in self.pieces]
        return replace(self, pieces=tuple(changed))

    def with_env(self, name: str, value: str | None) -> "Command":
        """Return this command with one variable set in front of it, or taken away."""
        kept = tuple(word for word in self.env if not word.startswith(f"{name}="))
        return replace(self, env=kept if value is None else (*kept, f"{name}={value}"))

    def with_num_processes(self, num: int) -> "Command | None":
        """Return this command launching another number of processes, or None if its launcher does not say how many."""
        words = list(self.launcher)
        for index, word in enumerate(words):
            name, equals, _ = word.lstrip("-").replace("_", "-").partition("=")
            if not word.startswith("-") or name not in ("nproc-per-node", "nproc", "num-processes", "np", "n"):
                continue
            if equals:
                words[index] = f"{word.partition('=')[0]}={num}"
            elif index + 1 < len(words):
                words[index + 1] = str(num)
            return replace(self, launcher=tuple(words))
        return None


def split(command: Iterable[str], script: str | None = None) -> Command:
    """Take a command apart.

    Args:
        command: Its words.
        script: The script that trains, if it is known and does not end in ``.py``.
    """
    words = list(command)
    env, words = _environment(words)
    for index, word in enumerate(words):
        if word == "-m" and index + 1 < len(words) and words[index + 1] not in _LAUNCHER_MODULES:
            cut, end = index, index + 2
        elif word.endswith(".py") or (script is not None and word == script):
            cut, end = index, index + 1
        else:
            continue
        return Command(
            env=env, launcher=tuple(words[:cut]), target=tuple(words[cut:end]), pieces=tuple(_pieces(words[end:]))
        )
    return Command(env=env, launcher=tuple(words[:1]), target=(), pieces=tuple(_pieces(words[1:])))


def _environment(words: list[str]) -> tuple[tuple[str, ...], list[str]]:
    if not words or Path(words[0]).name != "env":
        return (), words
    end = 1
    while end < len(words) and _ASSIGNMENT.match(words[end]):
        end += 1
    return tuple(words[1:end]), words[end:]


def _pieces(words: list[str]) -> Iterable[Piece]:
    positional = 0
    index = 0
    while index < len(words):
        word = words[index]
        end = index + 1
        if _is_flag(word):
            name, equals, _ = word.partition("=")
            while not equals and end < len(words) and not _is_flag(words[end]) and not _OVERRIDE.match(words[end]):
                end += 1
        elif match := _OVERRIDE.match(word):
            name = match[0].lstrip("+~")
        else:
            positional += 1
            name = f"{POSITIONAL}{positional}"
        yield Piece(name, tuple(words[index:end]))
        index = end


def _is_flag(word: str) -> bool:
    return len(word) > 1 and word.startswith("-") and not _NUMBER.match(word)


def _with_value(piece: Piece, value: str) -> tuple[str, ...]:
    first = piece.words[0]
    if first == piece.name:
        return (first, value)
    return (value,) if piece.name.startswith(POSITIONAL) else (f"{first.partition('=')[0]}={value}",)


def launcher_facts(launcher: Iterable[str]) -> dict[str, str | bool]:
    """Return what launches, and its flags, without the number of processes and where they meet.

    An interpreter is called ``python`` wherever it stands, and ``python -m torch.distributed.run`` is ``torchrun``.
    """
    words = [Path(word).name if index == 0 else word for index, word in enumerate(launcher)]
    words = ["python" if _PYTHON.match(Path(word).name) else word for word in words]
    if "-m" in words and words.index("-m") + 1 < len(words) and words[words.index("-m") + 1] in _TORCHRUN:
        cut = words.index("-m")
        words = ["torchrun", *words[cut + 2 :]]
    plain = [word for word in words if word != "-u"]
    head = [word for word in plain[:2] if not word.startswith("-")] if plain[:1] == ["accelerate"] else plain[:1]
    facts: dict[str, str | bool] = {"launcher": " ".join(head)}
    for piece in _pieces(plain[len(head) :]):
        name = piece.name.lstrip("-").replace("_", "-")
        if name not in _NUM_PROCESSES | _MEETING_POINT and not name.startswith("rdzv"):
            facts[f"launcher:{piece.name}"] = piece.value
    return facts
