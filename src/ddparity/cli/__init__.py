"""The command line: one command a file, thin."""

from ddparity.cli._main import main

__all__ = ["main"]
