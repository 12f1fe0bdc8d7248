"""Runs each snippet of a module in a forked child that records: one import of torch for all of them.

Usage: ``forked.py OUT MODULE...``. A snippet is a function of the module whose name does not start with an
underscore; its keyword defaults are settings of the recorder. Its trial is ``OUT/NAME``, its output ``OUT/NAME.log``,
its exit code ``OUT/NAME.code``. A snippet that raises ends as a script would.
"""

import atexit
import importlib
import inspect
import json
import os
import signal
import sys
from pathlib import Path

import torch
import torch._dynamo
import torch.distributed.tensor

from ddparity.capture import VARIABLE, autoload

sys.path.insert(0, str(Path(__file__).parent))
_SECONDS = 60


def _child(function, out: Path) -> int:
    log = os.open(f"{out}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    signal.alarm(_SECONDS)
    settings = {name: p.default for name, p in inspect.signature(function).parameters.items()}
    os.environ[VARIABLE] = json.dumps({"trial_dir": str(out), "steps": "0:100", **settings})
    os.environ["TMPDIR"] = str(out.parent)
    autoload()
    torch.manual_seed(0)
    code = _ending(function)
    atexit._run_exitfuncs()
    sys.stdout.flush()
    return code


def _ending(function) -> int:
    """Run the snippet and end as the interpreter does."""
    try:
        function()
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except BaseException as error:
        sys.last_value = error
        sys.excepthook(type(error), error, error.__traceback__)
        return 1
    return 0


def main() -> None:
    out, modules = Path(sys.argv[1]), sys.argv[2:]
    for module in modules:
        found = vars(importlib.import_module(module)).items()
        for name, function in found:
            if name.startswith("_") or not inspect.isfunction(function) or function.__module__ != module:
                continue
            pid = os.fork()
            if pid == 0:
                os._exit(_child(function, out / name))
            _, status = os.waitpid(pid, 0)
            Path(f"{out / name}.code").write_text(str(os.waitstatus_to_exitcode(status)))


if __name__ == "__main__":
    main()
