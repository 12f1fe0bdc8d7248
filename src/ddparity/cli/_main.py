"""Entry of the command line: errors become one clear message on standard error and an exit code."""

import os
import sys
import traceback

from ddparity._errors import DdparityError, ExitCode
from ddparity.cli._app import build

DEBUG_VARIABLE = "DDPARITY_DEBUG"


def main() -> None:
    """Run the command that ``sys.argv`` names, and exit with its code."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="replace")  # a terminal that cannot show a glyph is no reason to fail
    try:
        build(sys.argv[1:])()
    except DdparityError as error:
        _fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        _fail("interrupted", ExitCode.INTERRUPTED)
    except Exception as error:
        _fail(_unexpected(error), ExitCode.USAGE)


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
