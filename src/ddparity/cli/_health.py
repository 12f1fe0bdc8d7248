"""What ``ddparity doctor`` looks at. torch itself is not imported: its version is read from the metadata."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from enum import StrEnum
from importlib import metadata
from pathlib import Path

import msgspec

from ddparity.trials import Store

_PROBE_SECONDS = 20.0
_MIN_FREE_BYTES = 1 << 30
_MIN_TORCH = (2, 4)
_PROBE = """
import json, sys
from importlib import metadata
def version(name):
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
print(json.dumps({name: version(name) for name in ("torch", "ddparity")}))
"""


class Grade(StrEnum):
    """How bad it is: ``FAIL`` keeps anything from being recorded."""

    OK = "OK"
    WARN = "WARN"
    FAIL = "FAIL"


class Check(msgspec.Struct, kw_only=True):
    """One thing that was looked at; ``advice`` says what to do about it."""

    name: str
    grade: Grade = Grade.OK
    value: str
    advice: str = ""


def examine(store: Store, env: Mapping[str, str] | None = None) -> list[Check]:
    """Look at everything that recording depends on.

    Args:
        store: The store that would be used.
        env: The environment a training would get; the process's own when None.
    """
    env = os.environ if env is None else env
    python, training = _training_python(env)
    return [
        Check(name="ddparity", value=f"{metadata.version('ddparity')}, on Python {sys.version.split()[0]}"),
        Check(
            name="libraries", value=", ".join(f"{name} {_version(name)}" for name in ("numpy", "pyarrow", "msgspec"))
        ),
        python,
        _torch(training),
        _torchrun(env),
        _injection(training, env),
        *_risky_variables(env),
        Check(name="processors", value=_processors(env)),
        Check(name="accelerator", value=_accelerator(env)),
        _store(store),
    ]


def recordable(checks: list[Check]) -> dict[str, str]:
    """Return what can be recorded here, each with ``yes`` or the reason why not."""
    grades = {check.name: check for check in checks}
    torch = grades["torch"]
    reason = "yes" if torch.grade is not Grade.FAIL else f"no: {torch.value}"
    launcher = grades["torchrun"]
    ranks = reason if reason != "yes" or launcher.grade is Grade.OK else "yes, through python -m torch.distributed.run"
    return {
        "one process": reason,
        "several processes (gloo on the CPU, nccl where there are NVIDIA devices)": ranks,
        "layers numerics, data and memory": reason,
        "layer communication (several processes)": ranks,
    }


def suggestion(checks: list[Check], store: Store) -> str:
    """Return the one command to run next."""
    for check in checks:
        if check.grade is Grade.FAIL:
            return check.advice
    # A recording that is there says where the user stands.
    trials = [facts for facts in store.trials() if not facts.name.endswith(".repeat")]
    control = next((facts.name for facts in trials if facts.control), None)
    candidate = next((facts.name for facts in trials if not facts.control), None)
    if control is None:
        return "ddparity record --control --name single -- python train.py"
    if candidate is None:
        return "ddparity record --name ddp2 -- torchrun --nproc-per-node 2 train.py"
    return f"ddparity compare {control} {candidate}"


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _training_python(env: Mapping[str, str]) -> tuple[Check, dict[str, str | None]]:
    """Look at the ``python`` that a recorded command would run; it may be another one than ours."""
    own = {name: _version(name) for name in ("torch", "ddparity")}
    path = shutil.which("python", path=env.get("PATH"))
    if path is None:
        advice = f"activate an environment, or record -- {sys.executable} train.py"
        return Check(name="python", grade=Grade.WARN, value="no python on PATH", advice=advice), own
    if Path(path).parent == Path(sys.executable).parent:
        return Check(name="python", value=f"{path}, where ddparity runs too"), own
    try:
        done = subprocess.run(
            [path, "-c", _PROBE],
            env=dict(env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_PROBE_SECONDS,
            check=True,
        )
        found = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        value = f"{path} does not run ({type(error).__name__})"
        return Check(name="python", grade=Grade.WARN, value=value, advice=f"try: {path} -c pass"), own
    return Check(name="python", value=f"{path} (ddparity runs on {sys.executable})"), found


def _torch(training: dict[str, str | None]) -> Check:
    version = training.get("torch")
    if version is None:
        return Check(
            name="torch",
            grade=Grade.FAIL,
            value="not installed where the training runs",
            advice="pip install 'ddparity[torch]'",
        )
    numbers = tuple(int(part) for part in version.split("+")[0].split(".")[:2] if part.isdigit())
    if numbers < _MIN_TORCH:
        advice = "pip install 'torch>=2.4'"
        return Check(name="torch", grade=Grade.FAIL, value=f"{version} is older than 2.4", advice=advice)
    return Check(name="torch", value=version)


def _torchrun(env: Mapping[str, str]) -> Check:
    path = shutil.which("torchrun", path=env.get("PATH"))
    if path is None:
        advice = "launch with: python -m torch.distributed.run"
        return Check(name="torchrun", grade=Grade.WARN, value="not on PATH", advice=advice)
    return Check(name="torchrun", value=path)


def _injection(training: dict[str, str | None], env: Mapping[str, str]) -> Check:
    """Say which of the two ways brings the recorder into the training's processes."""
    second = "the bootstrap on PYTHONPATH"
    if env.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") == "0":
        return Check(
            name="injection", value=f"{second} (TORCH_DEVICE_BACKEND_AUTOLOAD=0 switches torch's autoload off)"
        )
    if training.get("ddparity") is None:
        advice = "install ddparity there too if nothing is recorded: numpy, pyarrow and msgspec are needed"
        value = f"{second} (ddparity is not installed where the training runs)"
        return Check(name="injection", grade=Grade.WARN, value=value, advice=advice)
    if not any(entry.name == "ddparity" for entry in metadata.entry_points(group="torch.backends")):
        advice = "pip install --force-reinstall --no-deps ddparity"
        return Check(
            name="injection", grade=Grade.WARN, value=f"{second} (no entry point torch.backends)", advice=advice
        )
    return Check(name="injection", value=f"the entry point torch.backends; {second} stands behind it")


def _risky_variables(env: Mapping[str, str]) -> Iterator[Check]:
    if env.get("TORCH_DISTRIBUTED_DEBUG", "").upper() == "DETAIL":
        yield Check(
            name="TORCH_DISTRIBUTED_DEBUG",
            grade=Grade.WARN,
            value="DETAIL crashes DistributedDataParallel on gloo with torch 2.13, recorded or not",
            advice="unset TORCH_DISTRIBUTED_DEBUG",
        )
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        missing = _missing_interfaces(env.get(name, ""))
        if missing:
            yield Check(
                name=name,
                grade=Grade.WARN,
                value=f"names {', '.join(missing)}, which this host does not have: ranks here cannot start",
                advice=f"unset {name}, or name one of: {', '.join(_interfaces())}",
            )
    if env.get("DDPARITY_CAPTURE"):
        yield Check(
            name="DDPARITY_CAPTURE",
            grade=Grade.WARN,
            value="is set, so this shell itself runs inside a recording",
            advice="unset DDPARITY_CAPTURE",
        )


def _interfaces() -> list[str]:
    folder = Path("/sys/class/net")
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def _missing_interfaces(value: str) -> list[str]:
    """Return the interfaces of a variable that this host lacks; NCCL takes prefixes, ^ excludes and = is exact."""
    there = _interfaces()
    if not there or value.startswith("^"):
        return []
    wanted = [name.strip() for name in value.lstrip("=").split(",") if name.strip()]
    return [name for name in wanted if not any(found.startswith(name) for found in there)]


def _processors(env: Mapping[str, str]) -> str:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{usable} usable, OMP_NUM_THREADS {env.get('OMP_NUM_THREADS', 'not set')}"


def _accelerator(env: Mapping[str, str]) -> str:
    devices = sorted(path.name for path in Path("/dev").glob("nvidia[0-9]*"))
    visible = env.get("CUDA_VISIBLE_DEVICES")
    hidden = "" if visible is None else f", CUDA_VISIBLE_DEVICES={visible}"
    return f"{', '.join(devices)}{hidden}" if devices else "no NVIDIA device file; trainings run on the CPU"


def _store(store: Store) -> Check:
    there = next(folder for folder in (store.root, *store.root.parents) if folder.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        advice = "name a folder that you may write: --store FOLDER or DDPARITY_HOME"
        return Check(name="store", grade=Grade.FAIL, value=f"{store.root} cannot be written", advice=advice)
    free = shutil.disk_usage(there).free
    value = f"{store.root}, {len(store.ids())} trials, {free / (1 << 30):.1f} GiB free"
    if free < _MIN_FREE_BYTES:
        advice = "make room, or name another folder with --store"
        return Check(name="store", grade=Grade.WARN, value=value, advice=advice)
    return Check(name="store", value=value)
