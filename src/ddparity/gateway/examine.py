"""``python -m ddparity.gateway.examine``: judge one trial, or one against another, in a process of its own.

The gateway's pages ask for it: so that a large or damaged trace costs a process that ends, and never the gateway. One
document goes to standard output, as MessagePack, which has a place for NaN. Exit code 3, with a sentence on standard
error, where a trace cannot be read.
"""

import os
import resource
import signal
import sys
from pathlib import Path
from typing import Any

import msgspec

from ddparity._errors import DdparityError, ExitCode

_NICE = 5
"""Trainings that run beside it go first."""


def main(argv: list[str]) -> int:
    """Judge the folders of one trial, or of a control and a candidate; return the exit code.

    Args:
        argv: Seconds after which to give up, then one folder or two.
    """
    seconds = int(argv[0])
    # Should the gateway be killed meanwhile, nobody else would end this.
    signal.alarm(seconds + 5)
    resource.setrlimit(resource.RLIMIT_CPU, (seconds + 5, seconds + 10))
    os.nice(_NICE)
    try:
        document = _document([Path(each) for each in argv[1:]])
    except DdparityError as error:
        print(error, file=sys.stderr)
        return int(ExitCode.INCONCLUSIVE)
    sys.stdout.buffer.write(document)
    return int(ExitCode.PASS)


def _document(folders: list[Path]) -> bytes:
    from ddparity.judge import check_and_measure, compare_and_measure

    if len(folders) == 1:
        return msgspec.msgpack.encode(check_and_measure(folders[0]), enc_hook=_plain_scalar)
    # A reader of a page cannot record anew: that the code changed in between is told by the verdict's notes.
    return msgspec.msgpack.encode(compare_and_measure(*folders, allow_stale=True), enc_hook=_plain_scalar)


def _plain_scalar(value: Any) -> Any:
    """Turn a numpy scalar that slipped into the evidence into Python's own."""
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(f"{type(value).__name__} does not belong into a verdict")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
