"""Facts about a command that can be seen from outside: its script, the state of the repository it stands in."""

import hashlib
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from ddparity.trace._schema import GitFacts

_GIT_SECONDS = 10.0


def find_script(command: Sequence[str], cwd: Path) -> Path | None:
    """Return the absolute path of the first argument of ``command`` that is an existing ``*.py`` file, or None."""
    for argument in command:
        if argument.endswith(".py"):
            path = cwd / argument
            if path.is_file():
                return path.resolve()
    return None


def sha256_of(path: Path) -> str | None:
    """Return the SHA-256 of a file in hexadecimal, or None if it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None


def git_facts(folder: Path) -> GitFacts:
    """Return commit and cleanness of the repository around ``folder``; never fails, ``reason`` says what is missing.

    Untracked files do not make a repository dirty: the first of two runs writes logs and checkpoints, and these are no
    difference in code between the two. The script itself is held by its hash.
    """
    commit, reason = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return GitFacts(reason=reason)
    changes, reason = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return GitFacts(commit=commit, dirty=None if changes is None else bool(changes), reason=reason)


def _git(folder: Path, *arguments: str) -> tuple[str | None, str]:
    """Return git's output, or None and the reason why there is none."""
    # Without optional locks, looking at a repository never gets in the way of the user's own git.
    env = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_GIT_SECONDS,
            check=False,
        )
    except FileNotFoundError:
        return None, "git is not installed"
    except subprocess.TimeoutExpired:
        return None, f"git {arguments[0]} took longer than {_GIT_SECONDS:.0f} s"
    except OSError as error:
        return None, f"git could not be started ({error.strerror})"
    if done.returncode != 0:
        complaint = done.stderr.decode("utf-8", "replace").strip().splitlines()
        return None, complaint[0][:200] if complaint else f"git {arguments[0]} exited with {done.returncode}"
    return done.stdout.decode("utf-8", "replace").strip(), ""
