"""Entry of the command line: errors become one clear message on standard error and an exit code."""

import os
import signal
import sys
import threading
import traceback

from ddparity._errors import DdparityError, ExitCode
from ddparity.cli._app import build

DEBUG_VARIABLE = "DDPARITY_DEBUG"
_COMPLETION = "_DDPARITY_COMPLETE"
"""Set by the script of --install-completion, together with one of the two variables that hold what was typed."""


def main() -> None:
    """Run the command that ``sys.argv`` names, and exit with its code."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="replace")  # a terminal that cannot show a glyph is no reason to fail
    _end_tidily()
    try:
        build(_arguments())()
    except DdparityError as error:
        _fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        _fail("interrupted", ExitCode.INTERRUPTED)
    except Exception as error:
        _fail(_unexpected(error), ExitCode.USAGE)


def _end_tidily() -> None:
    """Have SIGTERM and SIGHUP end a command as Ctrl-C does: what it started is ended and what it made is cleared up.

    A signal that was ignored (nohup) stays ignored.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, signal.default_int_handler)


def _arguments() -> list[str]:
    """Return the words after the program's name; those being typed where a shell asks how they may go on."""
    typed = os.environ.get("_TYPER_COMPLETE_ARGS") or os.environ.get("COMP_WORDS")
    return typed.split()[1:] if typed and _COMPLETION in os.environ else sys.argv[1:]


def _unexpected(error: Exception) -> str:
    return (
        f"this is a fault of ddparity itself: {type(error).__name__}: {error}\n"
        f"Please report it, with what {DEBUG_VARIABLE}=1 prints for the same command."
    )


def _fail(message: str, code: ExitCode) -> None:
    if os.environ.get(DEBUG_VARIABLE) == "1":
        traceback.print_exc()
    print(f"ddparity: {message}", file=sys.stderr)
    sys.exit(int(code))
