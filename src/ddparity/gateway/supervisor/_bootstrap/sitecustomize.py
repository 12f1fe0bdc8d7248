"""In every Python process of a gateway job: ranks write their own log, die with their agent, and tell how they ended.

On PYTHONPATH only inside a job. The user's script runs as itself; nothing stands between it and its launcher. Chains to
the sitecustomize that it hides. A fault here must never keep a job from running.
"""

import importlib.machinery
import importlib.util
import json
import os
import sys
import time
from typing import Any, NoReturn

_HERE = os.path.dirname(os.path.abspath(__file__))


def _rank() -> int | None:
    """Return the rank of this process, or None if it is none: the agent, a helper, a grandchild's child."""
    if "RANK" in os.environ:
        return int(os.environ["RANK"])
    # The single-device path of a gate is what `ddparity record` starts, and not that command itself.
    return 0 if os.environ.get("DDPARITY_JOB_SINGLE") and os.environ.get("DDPARITY_CAPTURE") else None


def _start_ticks() -> int:
    with open("/proc/self/stat") as file:
        return int(file.read().rpartition(")")[2].split()[19])


def _write(path: str, document: Any) -> None:
    temporary = f"{path}.{os.getpid()}.tmp"
    with open(temporary, "w") as file:
        json.dump(document, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def _claimed(marks: str, rank: int) -> bool:
    """Enter this process as the rank; False for the later ones that inherited its environment."""
    try:
        descriptor = os.open(os.path.join(marks, f"rank-{rank:05d}.json"), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return False
    with open(descriptor, "w") as file:
        node = os.environ.get("DDPARITY_JOB_NODE_ID", "0")
        json.dump({"pid": os.getpid(), "start": _start_ticks(), "time": time.time(), "node": node}, file)
    return True


def _die_with_agent() -> None:
    import ctypes
    import signal

    agent = os.getppid()
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
    if os.getppid() != agent:  # it died before the kernel knew
        os.kill(os.getpid(), signal.SIGKILL)


def _log_to(folder: str, rank: int) -> None:
    path = os.path.join(folder, f"rank-{rank:05d}.log")
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


class _Ending:
    """Tells a rank that came to the end of its script from one that failed or was killed."""

    def __init__(self, path: str) -> None:
        self.path, self.pid = path, os.getpid()
        self.code: Any = None
        self.error: str | None = None

    def install(self) -> None:
        import atexit

        atexit.register(self.at_exit)  # the first to be registered is the last to run
        before, leave = sys.excepthook, sys.exit

        def excepthook(kind: Any, error: Any, trace: Any) -> None:
            self.error = f"{kind.__name__}: {error}"[:2000]
            before(kind, error, trace)

        def exit(code: Any = None, /) -> NoReturn:
            self.code = code
            leave(code)

        sys.excepthook, sys.exit = excepthook, exit

    def at_exit(self) -> None:
        if os.getpid() != self.pid:
            return
        error = self.error
        last = getattr(sys, "last_value", None)
        if error is None and isinstance(last, BaseException):  # another's excepthook took the place of ours
            error = f"{type(last).__name__}: {last}"[:2000]
        if error is None and self.code not in (None, 0, False):
            error = f"SystemExit: {self.code}"[:2000]
        _write(self.path, {"finished": error is None, "error": error, "time": time.time()})


def _tell_failures(path: str) -> None:
    """Have the agent write down which rank failed and how, which it knows from waiting for them."""
    before = sys.excepthook

    def excepthook(kind: Any, error: Any, trace: Any) -> None:
        if kind.__name__ == "ChildFailedError" and kind.__module__.startswith("torch.distributed.elastic."):
            found = {
                str(rank): {"exit_code": each.exitcode, "time": float(each.timestamp)}
                for rank, each in error.failures.items()
            }
            _write(path, found)
        before(kind, error, trace)

    sys.excepthook = excepthook


def _enter() -> None:
    marks, logs = os.environ.get("DDPARITY_JOB_MARKS"), os.environ.get("DDPARITY_JOB_LOGS")
    if not marks or not logs:
        return
    rank = _rank()
    if rank is None:
        node = os.environ.get("DDPARITY_JOB_NODE_ID", "0")
        _tell_failures(os.path.join(marks, f"failures-{node}.json"))
    elif _claimed(marks, rank):
        _die_with_agent()
        _log_to(logs, rank)
        _Ending(os.path.join(marks, f"ending-{rank:05d}.json")).install()


def _chain() -> None:
    """Run the sitecustomize that stands behind this one on the path; those before it have had their turn."""
    places = [os.path.abspath(entry or ".") for entry in sys.path]
    behind = sys.path[places.index(_HERE) + 1 :] if _HERE in places else []
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", behind)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


try:
    _enter()
    _chain()
except Exception as error:
    print(f"ddparity: this process is not watched by its gateway: {type(error).__name__}: {error}", file=sys.stderr)
