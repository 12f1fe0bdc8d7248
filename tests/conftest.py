"""What every test may rely on: nothing leaks from one test into the next, and recordings are shared."""

import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported: files of tests run side by side
TOLERATED_VARIABLES = {"PYTEST_CURRENT_TEST", "PYTEST_VERSION", "COLUMNS", "LINES"}
IMPORT_VARIABLES = ("KMP_", "TORCHINDUCTOR_", "TORCH_", "TRITON_", "PYTORCH_NVML_")
"""Prefixes of what libraries set for good when they are first imported."""


@pytest.fixture(autouse=True)
def no_leaked_environment() -> Iterator[None]:
    """Fail when a test leaves an environment variable set, changed or removed, and put it back."""
    before = dict(os.environ)
    yield
    after = dict(os.environ)
    leaked = sorted(
        name
        for name in before.keys() | after.keys()
        if before.get(name) != after.get(name)
        and name not in TOLERATED_VARIABLES
        and not name.startswith(IMPORT_VARIABLES)
    )
    for name in leaked:
        if name in before:
            os.environ[name] = before[name]
        else:
            del os.environ[name]
    assert not leaked, f"environment variables leaked from the test: {', '.join(leaked)}"


@pytest.fixture(autouse=True)
def no_leaked_threads() -> Iterator[None]:
    """Fail when a test leaves a thread behind that would keep the interpreter alive."""
    before = set(threading.enumerate())
    yield
    leaked = [t for t in threading.enumerate() if t not in before and not t.daemon and t.is_alive()]
    for thread in leaked:
        thread.join(timeout=2)
    names = sorted(t.name for t in leaked if t.is_alive())
    assert not names, f"threads leaked from the test: {', '.join(names)}"


@pytest.fixture(autouse=True)
def no_leaked_children() -> Iterator[None]:
    """Fail when a test leaves a child process running."""
    before = _children()
    yield
    leaked = sorted(_children() - before)
    assert not leaked, f"child processes leaked from the test: {', '.join(map(str, leaked))}"


def _children() -> set[int]:
    """Return the ids of this process's children that still run; zombies do not count."""
    found = set()
    for task in Path("/proc/self/task").iterdir() if sys.platform == "linux" else ():
        try:
            found.update(int(pid) for pid in (task / "children").read_text().split())
        except OSError:  # the thread ended meanwhile, or the kernel has no such file
            continue
    return {pid for pid in found if _runs(pid)}


def _runs(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """Return ``record_once(key, command, **spec)``: records on the first call of a key, then hands out the same trial.

    The trials of one session stand in one store of its own, ``record_once.store``. ``spec`` goes to
    ``RecordSpec`` as it is; the answer is whatever ``ddparity.trials.record`` returned.
    """
    from ddparity.trials import RecordSpec, Store, record

    store = Store(tmp_path_factory.mktemp("recorded") / "store")
    made: dict[str, Any] = {}

    def record_once(key: str, command: list[str], **spec: Any) -> Any:
        if key not in made:
            spec = {"prove": False, "quiet": True, "timeout_s": 100.0} | spec
            made[key] = record(RecordSpec(command=command, store=store, name=key, **spec))
        return made[key]

    record_once.store = store
    return record_once
