"""What may be run: the workloads that ship with the product, and scripts below the gateway's roots."""

import fnmatch
import hashlib
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path

from ddparity.gateway._request import JobRequest

_MAX_FILES = 2000
_MAX_SHOWN = 5
_NOT_OURS = {"site-packages", "node_modules", "__pycache__", "venv"}


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A training that ships with the product: its module, and its words for what every job has."""

    module: str
    args: tuple[str, ...]
    batch_flag: str
    rate_flag: str


WORKLOADS = {
    "digits": Workload(
        module="ddparity.workloads.digits", args=("--epochs", "5"), batch_flag="--batch-size", rate_flag="--lr"
    ),
    "tiny_gpt": Workload(
        module="ddparity.workloads.tiny_gpt", args=("--steps", "20"), batch_flag="--batch", rate_flag="--lr"
    ),
}


class EntryRefused(ValueError):
    """What was asked for may not be run here; the message says what may."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """Something that may be run.

    Attributes:
        words: How Python is told of it: a path, or ``-m`` and a module.
        args: Its arguments.
        files: The code that its fingerprint is taken of.
    """

    words: tuple[str, ...]
    args: tuple[str, ...]
    files: tuple[Path, ...]

    def fingerprint(self) -> str:
        """Return a hash of the code and of the versions it runs with: what the gate has proved or not."""
        digest = hashlib.sha256()
        for name in ("ddparity", "torch", "numpy"):
            digest.update(f"{name} {_version(name)}\n".encode())
        digest.update(f"python {platform.python_version()}\n{' '.join(self.words)}\n".encode())
        for path in self.files:
            digest.update(path.name.encode() + b"\0")
            digest.update(hashlib.sha256(path.read_bytes()).digest())
        return digest.hexdigest()


def find_entry(request: JobRequest, roots: Sequence[Path]) -> Entry:
    """Return what ``request.entry`` names.

    A script is looked for below each root, in order. Links are followed first, and what they lead to has to be below
    the same root: nothing outside of the roots can be named.

    Raises:
        EntryRefused: It is no workload and no script below a root.
    """
    workload = WORKLOADS.get(request.entry)
    if workload is not None:
        return _workload(workload, request)
    for root in roots:
        path = _below(root, request.entry)
        if path is not None:
            args = tuple(_filled(argument, request) for argument in request.args)
            return Entry(words=(str(path),), args=args, files=_sources(path.parent))
    raise EntryRefused(
        f"entry {request.entry[:200]!r} is neither a workload ({', '.join(WORKLOADS)}) nor a script (*.py) below one "
        f"of the gateway's {len(roots)} roots. Add a root: ddparity serve --root FOLDER"
    )


def refused_variables(names: Sequence[str], allowed: Sequence[str]) -> str | None:
    """Return why a job may not set these environment variables, or None."""
    wrong = sorted(name for name in names if not any(fnmatch.fnmatchcase(name, pattern) for pattern in allowed))
    if not wrong:
        return None
    return f"env may not set {', '.join(wrong[:_MAX_SHOWN])}; allowed are: {', '.join(allowed)}"


def _workload(workload: Workload, request: JobRequest) -> Entry:
    rate = () if request.learning_rate is None else (workload.rate_flag, repr(request.learning_rate))
    args = (*workload.args, workload.batch_flag, str(request.global_batch), *rate)
    spec = util.find_spec(workload.module)
    files = () if spec is None or spec.origin is None else (Path(spec.origin),)
    filled = tuple(_filled(argument, request) for argument in request.args)
    return Entry(words=("-m", workload.module), args=(*args, *filled), files=files)


def _below(root: Path, name: str) -> Path | None:
    try:
        base = root.resolve(strict=True)
        path = (base / name).resolve(strict=True)
    except (OSError, RuntimeError, ValueError):  # missing, a loop of links, a name that no file can have
        return None
    return path if path.is_relative_to(base) and path.suffix == ".py" and path.is_file() else None


def _filled(argument: str, request: JobRequest) -> str:
    values = {
        "{batch_size}": str(request.batch_size),
        "{local_batch}": str(request.batch_size),
        "{global_batch}": str(request.global_batch),
        "{world_size}": str(request.world_size),
        "{learning_rate}": "" if request.learning_rate is None else repr(request.learning_rate),
    }
    for placeholder, value in values.items():
        argument = argument.replace(placeholder, value)
    return argument


def _sources(folder: Path) -> tuple[Path, ...]:
    """Return the Python files beside a script and below, up to a number: what it can import of its own."""
    found: list[Path] = []
    for base, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in _NOT_OURS)
        paths = (Path(base, name) for name in sorted(names) if name.endswith(".py"))
        found += [path for path in paths if path.is_file() and not path.is_symlink()]
        if len(found) >= _MAX_FILES:
            break
    return tuple(found[:_MAX_FILES])


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "none"
