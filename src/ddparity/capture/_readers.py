"""Functions that read data from files, known by name: what they return can be described, and made up elsewhere."""

import functools
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

READERS = {
    "torch": ("load",),
    "numpy": ("load", "loadtxt", "genfromtxt", "fromfile"),
    "sklearn.datasets": (
        "load_digits", "load_iris", "load_wine", "load_breast_cancer", "load_diabetes", "load_linnerud",
        "fetch_california_housing", "fetch_openml", "fetch_covtype", "fetch_olivetti_faces",
    ),
}  # fmt: skip
"""Module -> functions whose result is data."""

_OF_FILES = ("torch", "numpy")
_FILE = ("f", "file", "fname")

Instead = Callable[[str, Callable[[], Any]], Any]


def around_readers(instead: Instead, started: float) -> None:
    """Call ``instead(name, call)`` in place of a function that reads data.

    What the run itself has written since ``started``, such as a checkpoint, is read as it is.
    """
    inside: list[str] = []
    replaced: dict[int, Any] = {}
    kept: list[Any] = []
    for module_name, functions in READERS.items():
        top = module_name.partition(".")[0]
        if top not in sys.modules and importlib.util.find_spec(top) is None:
            continue
        module = importlib.import_module(module_name)
        for name in functions:
            plain = getattr(module, name, None)
            if plain is not None:
                of_files = top in _OF_FILES
                wrapped = _wrapped(f"{module_name}.{name}", plain, instead, started if of_files else None, inside)
                setattr(module, name, wrapped)
                replaced[id(plain)] = wrapped
                kept.append(plain)  # ids are told apart as long as it lives
    _bind_anew(replaced)


def _wrapped(name: str, plain: Any, instead: Instead, started: float | None, inside: list[str]) -> Any:
    @functools.wraps(plain)
    def call(*args: Any, **kwargs: Any) -> Any:
        given = args[0] if args else next((kwargs[word] for word in _FILE if word in kwargs), None)
        if inside or (started is not None and _is_new(given, started)):
            return plain(*args, **kwargs)
        inside.append(name)
        try:
            return instead(name, lambda: plain(*args, **kwargs))
        finally:
            inside.pop()

    return call


def _is_new(given: Any, started: float) -> bool:
    """Whether that is a file the run has made itself, or no file at all (a buffer)."""
    path = given if isinstance(given, (str, os.PathLike)) else getattr(given, "name", None)
    if not isinstance(path, (str, os.PathLike)):
        return True
    try:
        return os.stat(path).st_mtime >= started
    except OSError:
        return False


def _bind_anew(replaced: dict[int, Any]) -> None:
    """Replace functions where scripts have taken them by name already (``from numpy import load``)."""
    for module in list(sys.modules.values()):
        file = vars(module).get("__file__") if isinstance(module, ModuleType) else None
        if not isinstance(file, str) or file.startswith((sys.prefix, sys.base_prefix)):
            continue
        for name, value in list(vars(module).items()):
            if id(value) in replaced:
                setattr(module, name, replaced[id(value)])
