"""What a command is doing: one line on standard error, where that is a terminal, once it takes over two seconds."""

import os
import sys
import threading
from contextlib import AbstractContextManager
from typing import Any

from ddparity.cli import _output

SILENT_SECONDS = 2.0
"""Before this nothing is shown: most commands have answered by then."""


class Busy(AbstractContextManager["Busy"]):
    """Shows, while a block runs, what it does and for how long; nothing of it is left on the terminal afterwards.

    Args:
        text: What is being done, as a phrase: "holding two against single".
        show: False never shows anything (a recorded command that writes to the same terminal).
    """

    def __init__(self, text: str, *, show: bool = True) -> None:
        self._text = text
        self._line: Any = None
        self._task: Any = None
        self._lock = threading.Lock()
        self._ended = False
        live = show and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._timer = threading.Timer(SILENT_SECONDS, self._begin) if live else None

    def __enter__(self) -> "Busy":
        if self._timer is not None:
            self._timer.daemon = True
            self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        with self._lock:
            self._ended = True
            if self._line is not None:
                self._line.stop()

    def say(self, text: str) -> None:
        """Print a remark above the line, which shows it from now on, with a time of its own."""
        with self._lock:
            self._text = text
            if self._line is not None:
                self._line.reset(self._task, description=_shown(text))
        _output.say(text)

    def _begin(self) -> None:
        from rich.console import Console
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
        # Standard output keeps its own way where it is no terminal: what is piped holds the answer and nothing else.
        line = Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=sys.stdout.isatty())
        with self._lock:
            if not self._ended:
                self._line, self._task = line, line.add_task(_shown(self._text), total=None)
                line.start()


def _shown(text: str) -> str:
    first = text.splitlines()[0] if text else ""
    return first if len(first) <= 60 else f"{first[:59]}…"
