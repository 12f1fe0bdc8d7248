"""Inside the training process: what is observed and how. Importing this package loads no torch and patches nothing."""

import os
from pathlib import Path

__all__ = ["VARIABLE", "autoload", "bootstrap_path"]

VARIABLE = "DDPARITY_CAPTURE"
"""Environment variable that ``ddparity record`` sets; without it nothing in this package does anything."""


def autoload() -> None:
    """Start recording if ``ddparity record`` launched this process; torch calls this at the end of ``import torch``.

    It never raises: a fault here must not keep anybody's ``import torch`` from working.
    """
    if not os.environ.get(VARIABLE):
        return
    try:
        from ._session import start

        start(os.environ[VARIABLE])
    except Exception as error:
        import sys

        print(f"ddparity: not recording this process: {type(error).__name__}: {error}", file=sys.stderr)


def bootstrap_path() -> Path:
    """Return the folder to put on PYTHONPATH where torch's own autoload cannot find ddparity or is switched off."""
    return Path(__file__).parent / "_bootstrap"
