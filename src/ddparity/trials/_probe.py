"""Measuring what a link of this machine can do, beside a trial: two processes that only send to each other."""

import os
import subprocess
import sys
from pathlib import Path

import msgspec

from ddparity.trace._schema import CaptureConfig, TrialFacts
from ddparity.trials._launch import child_environment

FOLDER = "probe"
"""Folder of a trial in which the rings of its probe stand."""
_SECONDS = 60.0


def probe(folder: Path, facts: TrialFacts, backend: str = "gloo") -> None:
    """Run the probe and leave its rings in the trial; where it cannot be run a note says so."""
    config = CaptureConfig(trial_dir=str(folder / FOLDER), steps="1")
    env = child_environment(os.environ, msgspec.json.encode(config).decode())
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["-m", "ddparity.workloads.probe", "--backend", backend]
    try:
        done = subprocess.run(command, env=env, capture_output=True, timeout=_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        facts.notes.append(f"the probe of the link did not run: {type(error).__name__}")
        return
    if done.returncode:
        facts.notes.append(
            f"the probe of the link ended with exit code {done.returncode}; to see why: "
            "torchrun --nproc-per-node 2 -m ddparity.workloads.probe"
        )
