"""Start ddparity's recorder when torch is imported, where torch's own autoload does not reach it.

On PYTHONPATH only under ``ddparity record``. Chains to the sitecustomize that it hides.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))
_PACKAGE = os.path.dirname(os.path.dirname(_HERE))


def _chain() -> None:
    rest = [entry for entry in sys.path if os.path.abspath(entry or ".") != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", rest)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


class _PackageFinder(importlib.abc.MetaPathFinder):
    """Finds ddparity itself, and nothing beside it, where it is not installed."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != "ddparity":
            return None
        init = os.path.join(_PACKAGE, "__init__.py")
        return importlib.util.spec_from_file_location(name, init, submodule_search_locations=[_PACKAGE])


class _AfterTorch(importlib.abc.MetaPathFinder):
    """Calls the recorder at the end of ``import torch``, once."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec("torch")
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                run(module)
                from ddparity.capture import autoload

                autoload()

            setattr(spec.loader, "exec_module", exec_module)  # noqa: B010 - a method is replaced on purpose
        return spec


try:
    if os.environ.get("DDPARITY_CAPTURE"):
        sys.meta_path.insert(0, _AfterTorch())
        sys.meta_path.append(_PackageFinder())
    _chain()
except Exception as error:
    print(f"ddparity: not recording this process: {type(error).__name__}: {error}", file=sys.stderr)
