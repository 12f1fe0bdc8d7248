"""Predicting from a training script: its first steps are tried in a process of their own. No torch on this side."""

import contextlib
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ddparity._errors import UsageError
from ddparity._linux import die_with_parent
from ddparity._recipe import EXAMPLE

from ._fit import Point

_LAUNCHED = re.compile(r"torchrun|torch\.distributed\.(run|launch)")
_NPROC = re.compile(r"--nproc[-_]per[-_]node(?:=(\d+))?|--nproc(?:=(\d+))?")
_MAX_TOLD = 12


@dataclass(frozen=True, kw_only=True)
class Script:
    """A training command, as far as a prediction needs it.

    Attributes:
        python: The interpreter that runs it.
        target: The script, or ``-m`` and a module, with its arguments.
        env: Variables that stand in front of it.
        num_ranks: How many processes it is launched in.
        launched: Whether a launcher starts it, so that it finds its rank in the environment.
    """

    python: str
    target: list[str]
    env: dict[str, str] = field(default_factory=dict)
    num_ranks: int = 1
    launched: bool = False


@dataclass(frozen=True, kw_only=True)
class Found:
    """What the first steps of a script told."""

    how: str
    points: list[Point]
    own_batch: int
    own_seq: int | None
    wrappers: list[str]
    notes: list[str]
    whole: int | None = None
    """The peak of the largest batch without sharding, where the model was sharded for the question."""


def read_command(command: list[str]) -> Script:
    """Take a training command apart.

    Raises:
        UsageError: There is no Python script in it.
    """
    from ddparity.judge._command import split  # the process that tries needs torch and nothing else

    parts = split(command)
    if not parts.target:
        raise UsageError(
            f"No Python script is in {' '.join(command)[:200]!r}. Write: ddparity memory --batch 8 -- python train.py "
            "or torchrun --nproc-per-node 4 train.py, or name a recipe."
        )
    launcher = " ".join(parts.launcher)
    launched = bool(_LAUNCHED.search(launcher))
    arguments = command[len(command) - sum(len(piece.words) for piece in parts.pieces) :] if parts.pieces else []
    env = dict(word.split("=", 1) for word in parts.env)
    return Script(
        python=_interpreter(parts.launcher[0] if parts.launcher and not launched else ""),
        target=[*parts.target, *arguments],
        env=env,
        num_ranks=_num_ranks(parts.launcher) if launched else 1,
        launched=launched,
    )


def _interpreter(word: str) -> str:
    """Return what runs the script: the interpreter that is named by its path, else ours if it has torch."""
    is_python = Path(word).name.startswith("python")
    if is_python and ("/" in word or importlib.util.find_spec("torch") is None):
        return word
    return sys.executable if importlib.util.find_spec("torch") is not None else shutil.which("python3") or "python3"


def _num_ranks(launcher: tuple[str, ...]) -> int:
    for index, word in enumerate(launcher):
        match = _NPROC.fullmatch(word)
        if match is not None:
            text = match[1] or match[2] or launcher[index + 1]
            return int(text) if text.isdecimal() else 1
    return 1


def try_script(
    script: Script,
    batches: list[int],
    *,
    seqs: list[int] | None = None,
    device: str = "cuda",
    shard: int = 0,
    num_ranks: int = 1,
    launched: bool = False,
    batch_dim: int = 0,
    timeout_s: float = 300.0,
) -> Found:
    """Run a script's first steps for each batch size under fake tensors, in a process of its own.

    Args:
        script: The command.
        batches: Samples of one forward.
        seqs: Lengths of sequences; None leaves the script's own.
        device: What the training will run on.
        shard: Over how many ranks to shard the model, if the script does not; 0 not to.
        num_ranks: How many ranks the script believes there are.
        launched: Whether it shall find its rank in the environment, as under a launcher.
        batch_dim: The dimension of the inputs that counts samples.
        timeout_s: Seconds after which it is given up.

    Raises:
        UsageError: The first steps could not be tried; the message says why and shows a recipe.
    """
    with tempfile.TemporaryDirectory(prefix="ddparity-memory-") as name:
        folder = Path(name)
        spec = {
            "batches": batches,
            "seqs": seqs or [None],
            "device": device,
            "shard": shard,
            "num_ranks": num_ranks,
            "launched": launched,
            "batch_dim": batch_dim,
        }
        (folder / "spec.json").write_text(json.dumps(spec))
        told = _run(script, folder, timeout_s)
    if "error" in told:
        raise UsageError(_cannot(script, told))
    told["points"] = [Point(**point) for point in told["points"]]
    return Found(**told)


def _run(script: Script, folder: Path, timeout_s: float) -> dict[str, Any]:
    env = {name: value for name, value in os.environ.items() if name != "DDPARITY_CAPTURE"} | script.env
    # It is forked after it has run operations, which threads of OpenMP do not survive.
    env |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "DDPARITY_MEMORY_SCRATCH": str(folder)}
    env |= {"WANDB_MODE": "disabled", "PYTHONDONTWRITEBYTECODE": "1"}
    paths = [str(Path(__file__).parents[2]), *filter(None, [env.get("PYTHONPATH")])]
    env["PYTHONPATH"] = os.pathsep.join(paths)
    command = [script.python, "-m", "ddparity.memory._probe", str(folder / "spec.json"), *script.target]
    own = os.getpid()
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(
            command,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=lambda: die_with_parent(signal.SIGKILL, own),
        )
        try:
            process.wait(timeout_s)
            late = False
        except subprocess.TimeoutExpired:
            late = True
        finally:
            _end(process)
    told: dict[str, Any] = {}
    if (folder / "found.json").is_file():
        told = json.loads((folder / "found.json").read_text())
    elif late:
        told = {"error": f"it took more than {timeout_s:.0f} s"}
    else:
        told = {"error": f"the process ended with exit code {process.returncode}"}
    if "error" in told:
        told["log"] = (folder / "log").read_text(errors="replace").splitlines()[-_MAX_TOLD:]
    return told


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End the process with everything that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, 9)
    process.wait()


def _cannot(script: Script, told: dict[str, Any]) -> str:
    log = "\n".join(f"    {line}" for line in told["log"])
    wrote = f"\nThe last that it wrote:\n{log}" if log.strip() else ""
    if "CUDA" in told["error"] or "cuda" in log:
        wrote += "\nIt asks for CUDA: --device cuda lets it believe that there is one."
    return (
        f"The first steps of {' '.join(script.target)[:120]!r} could not be tried: {told['error']}.{wrote}\n"
        "Write the training as a recipe, a file with these four functions, and name it instead:\n"
        f"{EXAMPLE}"
    )
