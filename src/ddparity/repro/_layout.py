"""Where the user's files and the words of a command go in a folder of the reproduction's own."""

import os
import re
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath

from ddparity.bundle._scrub import Scrubber
from ddparity.repro._case import PYTHON

ELSEWHERE = "elsewhere"
_PYTHON = re.compile(r"python(?:\d+(?:\.\d+)?)?")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)


class Layout:
    """Maps files below the working folder of the trial to the same place, and others to ``elsewhere/N/``.

    Args:
        cwd: Working folder of the trials.
        sources: Files that come along.
    """

    def __init__(self, cwd: Path, sources: Iterable[Path]) -> None:
        self._cwd = cwd
        self._outside: dict[Path, str] = {}
        self.targets = {path: self._target(path) for path in sorted(sources)}

    @property
    def roots(self) -> list[str]:
        """Folders from which the modules that come along are imported."""
        paths = [PurePosixPath(target) for target in self.targets.values()]
        found = {str(path.parent) for path in paths}
        packages = {str(path.parent) for path in paths if path.name == "__init__.py"}
        for package in packages:
            found.discard(package)
            above = PurePosixPath(package).parent
            while str(above) in packages:
                above = above.parent
            found.add(str(above))
        return sorted(found)

    def command(self, words: Sequence[str], scrub: Scrubber) -> list[str]:
        """Return a command that can be run in the folder: no path of this machine, no secret."""
        found: list[str] = []
        programs = True  # until the program: env and its assignments
        for word in words:
            name = Path(word).name
            if programs and (name == "env" or _ASSIGNMENT.fullmatch(word)):
                found.append(name if name == "env" else self._word(word))
            elif programs and (_PYTHON.fullmatch(name) or name == "torchrun"):
                found += [PYTHON] if name != "torchrun" else [PYTHON, "-m", "torch.distributed.run"]
                programs = False
            elif programs:
                found.append(name)
                programs = False
            else:
                found.append(self._word(word) if not _PYTHON.fullmatch(name) or not os.path.isabs(word) else PYTHON)
        return [word if word == PYTHON else cleaned for word, cleaned in zip(found, scrub.command(found), strict=True)]

    def _word(self, word: str) -> str:
        option, equals, value = word.partition("=")
        if equals and os.path.isabs(value):
            return f"{option}={self._place(value)}"
        return self._place(word) if os.path.isabs(word) or self._is_source(word) else word

    def _is_source(self, word: str) -> bool:
        return (self._cwd / word).resolve() in self.targets

    def _place(self, path: str) -> str:
        found = Path(os.path.normpath(self._cwd / path))
        target = self.targets.get(found) or self.targets.get(found.resolve())
        if target is not None:
            return target
        if found.is_relative_to(self._cwd):
            return str(found.relative_to(self._cwd))
        if os.access(found, os.X_OK) and found.is_file() and shutil.which(found.name) is not None:
            return found.name
        return f"{ELSEWHERE}/paths/{found.name}"

    def _target(self, path: Path) -> str:
        if path.is_relative_to(self._cwd):
            return path.relative_to(self._cwd).as_posix()
        root = path.parent
        while (root / "__init__.py").is_file() and root.parent != root:
            root = root.parent
        number = self._outside.setdefault(root, f"{ELSEWHERE}/{len(self._outside) + 1}")
        return f"{number}/{path.relative_to(root).as_posix()}"
