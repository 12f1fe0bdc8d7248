"""Fingerprints of the user's code and configuration: what a control rests on.

Every module that is loaded and neither installed nor part of Python is the user's; its top-level functions, the
methods of its classes and the rest of it are hashed apart, without comments, docstrings and layout. So a comment does
not make a control stale, and an edited loss function is named. Files on the command line are configuration.
"""

import ast
import hashlib
import os
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from ddparity.trace import RankFacts

_MAX_FILES = 400
_MAX_BYTES = 2 << 20
_MAX_SECONDS = 3.0
_INSTALLED = ("site-packages", "dist-packages")
_GENERATED = ("torchinductor_", ".triton")
_LIBRARIES = frozenset({"torch", "triton", "numpy", "ddparity", "lightning", "transformers", "accelerate", "deepspeed"})
_LIBRARIES |= {"sitecustomize", "usercustomize"}
_CONFIGURATION = frozenset({".yaml", ".yml", ".json", ".toml", ".ini", ".cfg", ".conf"})
REST = "<module>"
"""Name of what a module holds besides functions and classes."""


class Fingerprints:
    """What has been fingerprinted so far; a file is read once, as early as it is seen.

    Attributes:
        found: ``file::name`` -> hash of that function, method, class or rest of a module; or a file -> hash.
        sources: Absolute path -> hash of the whole file.
    """

    def __init__(self) -> None:
        self.found: dict[str, str] = {}
        self.sources: dict[str, str] = {}
        self._seconds = 0.0
        self._configuration: dict[str, Path] | None = None

    def take(self) -> None:
        """Read what has been loaded since the last time; at most for a few seconds."""
        started = time.perf_counter()
        for name, path in _user_modules():
            if str(path) not in self.sources and len(self.sources) < _MAX_FILES and self._seconds < _MAX_SECONDS:
                self._read(name, path)
                self._seconds += time.perf_counter() - started
                started = time.perf_counter()

    def take_arguments(self, arguments: list[str]) -> None:
        """Read the configuration files that a command line names, under the names that it gives them.

        Only what was there at the first call and has not changed since is configuration; the rest is output.
        """
        if self._configuration is None:
            paths = [Path(argument.rpartition("=")[2]) for argument in arguments]
            self._configuration = {str(path): path.absolute() for path in paths if path.suffix in _CONFIGURATION}
            read = {name: _content(path) for name, path in self._configuration.items()}
            self.found |= {name: short_hash(data) for name, data in read.items() if data is not None}
        for name, path in self._configuration.items():
            data = _content(path)
            if data is not None and self.found.get(name) == short_hash(data):
                self.sources[str(path)] = self.found[name]
            else:
                self.found.pop(name, None)
                self.sources.pop(str(path), None)

    def _read(self, name: str, path: Path) -> None:
        data = _content(path)
        if data is None:
            return
        self.sources[str(path)] = short_hash(data)
        try:
            pieces = pieces_of(data)
        except (SyntaxError, ValueError, RecursionError):
            return
        self.found |= {f"{name}::{piece}": digest for piece, digest in pieces.items()}


_fingerprints = Fingerprints()


def fingerprint(facts: RankFacts) -> None:
    """Enter into a rank's facts what its code is known by; of rank 0 only, for ranks run the same. Never raises."""
    if facts.rank != 0:
        return
    try:
        _fingerprints.take()
        _fingerprints.take_arguments(facts.argv[1:])
    except Exception as error:  # a control without fingerprints still judges, it only cannot be told to be stale
        print(f"ddparity: the code is not fingerprinted: {type(error).__name__}: {error}", file=sys.stderr)
    facts.fingerprints, facts.sources = dict(_fingerprints.found), dict(_fingerprints.sources)


def short_hash(data: bytes) -> str:
    """Return the first 64 bits of SHA-256 in hexadecimal: these tell versions of a file apart, nothing more."""
    return hashlib.sha256(data).hexdigest()[:16]


def pieces_of(source: bytes) -> dict[str, str]:
    """Return the hash of every top-level function, every method, every class without its methods, and of the rest.

    Raises:
        SyntaxError: It is not Python, or that of another version.
        ValueError: It holds a null byte.
    """
    tree = ast.parse(source)
    texts: dict[str, list[str]] = {}
    rest: list[ast.stmt] = []
    for node in _without_docstrings(tree).body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            texts.setdefault(node.name, []).append(ast.unparse(node))
        elif isinstance(node, ast.ClassDef):
            for name, text in _class_pieces(node):
                texts.setdefault(name, []).append(text)
        else:
            rest.append(node)
    texts[REST] = [ast.unparse(node) for node in rest]
    return {name: short_hash("\n".join(parts).encode("utf-8", "surrogatepass")) for name, parts in texts.items()}


def _class_pieces(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    methods = [each for each in node.body if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef))]
    for method in methods:
        yield f"{node.name}.{method.name}", ast.unparse(method)
    node.body = [each for each in node.body if each not in methods] or [ast.Pass()]
    yield node.name, ast.unparse(node)


def _without_docstrings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and node.body:
            first = node.body[0]
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                node.body = node.body[1:] or [ast.Pass()]
    return tree


def _user_modules() -> Iterator[tuple[str, Path]]:
    """Yield name and path of the user's modules, the script that was started first."""
    standard = [sysconfig.get_paths()[key] + os.sep for key in ("stdlib", "platstdlib")]
    modules = sorted(sys.modules.copy().items(), key=lambda item: item[0] != "__main__")
    for name, module in modules:
        file = vars(module).get("__file__") if isinstance(module, ModuleType) else None
        if not isinstance(file, str) or not file.endswith(".py") or name == "__mp_main__":
            continue
        main = name == "__main__"
        spec = vars(module).get("__spec__")
        name = spec.name if main and spec is not None else name
        path = Path(file).absolute()
        if main or (name.partition(".")[0] not in _LIBRARIES and not _is_installed(path, standard)):
            yield _file_name(name, path, main and spec is None), path


def _file_name(module: str, path: Path, is_script: bool) -> str:
    """Return a name of the file that does not depend on where it lies: ``train.py``, ``models/net.py``."""
    if is_script:
        return path.name
    folder = module.replace(".", "/")
    return f"{folder}/{path.name}" if path.name == "__init__.py" else f"{folder}.py"


def _is_installed(path: Path, standard: list[str]) -> bool:
    text = str(path)
    return any(word in text for word in (*_INSTALLED, *_GENERATED)) or text.startswith(tuple(standard))


def _content(path: Path) -> bytes | None:
    try:
        if not path.is_file() or path.stat().st_size > _MAX_BYTES:
            return None
        return path.read_bytes()
    except (OSError, ValueError):
        return None
