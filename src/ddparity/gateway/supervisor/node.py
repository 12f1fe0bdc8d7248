"""``python -m ddparity.gateway.supervisor.node FOLDER COMMAND...``: one node's part of a job in a Slurm step.

The same care as for a job of one machine, for the processes of this node: they are started together and none is left
when this process ends. The nodes meet at a port that is derived from Slurm's number of the job and the attempt.
"""

import os
import signal
import sys
import time
from pathlib import Path

import msgspec

from ddparity import _linux
from ddparity.gateway.supervisor._attempt import Running
from ddparity.gateway.supervisor._folder import JobFolder
from ddparity.gateway.supervisor._members import Members
from ddparity.gateway.supervisor._spec import NodeError, Phase

NODE_VARIABLE = "DDPARITY_JOB_NODE"
NODE_ID_VARIABLE = "DDPARITY_JOB_NODE_ID"
_FIRST_PORT, _NUM_PORTS = 20000, 12000
_TORCHRUN = "torch.distributed.run"


def main(folder: JobFolder, command: list[str]) -> int:
    """Run this node's part; return its exit code."""
    spec = folder.spec()
    if spec is None:
        return 2
    node, attempt = os.environ.get("SLURM_NODEID", "0"), int(os.environ.get("DDPARITY_ATTEMPT", "0"))
    tag = f"{spec.uid}-{attempt}-{node}"
    _linux.adopt_orphans()
    seen: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda got, _frame: seen.append(got))
    train = next(phase for phase in spec.phases if phase.name == "train")
    phase = Phase(
        name="train",
        command=_with_rendezvous(command, spec.uid, attempt),
        num_ranks=train.num_ranks,
        env={NODE_VARIABLE: tag, NODE_ID_VARIABLE: node},
    )
    spec = msgspec.structs.replace(spec, isolation="walk")
    members = Members(f"{NODE_VARIABLE}={tag}", None, os.getpid())
    running = Running(folder, spec, phase, attempt, members, None, node=node)
    ended = running.run(lambda: "cancel" if seen or folder.cancel_path.exists() else None)
    if ended.exit_code == 0 and ended.ended_by == "itself":
        return 0
    if ended.error is not None and ended.ended_by != "cancel":
        path = folder.marks("train", attempt) / f"error-{node}.json"
        folder.write(path, NodeError(error=f"node {node}: {ended.error}", time=time.time()))
    return ended.exit_code if ended.exit_code is not None and ended.exit_code > 0 else 1


def _with_rendezvous(command: list[str], uid: str, attempt: int) -> list[str]:
    """Put the nodes' meeting point behind torchrun's name; ``srun`` starts on the first node, which is where it is."""
    number = int(os.environ.get("SLURM_JOB_ID", "0"))
    host = os.environ.get("SLURM_LAUNCH_NODE_IPADDR", "127.0.0.1")
    port = _FIRST_PORT + (number * 21 + attempt) % _NUM_PORTS
    place = ["--rdzv-backend=c10d", f"--rdzv-endpoint={host}:{port}", f"--rdzv-id={uid}-{attempt}"]
    cut = command.index(_TORCHRUN) + 1
    return [*command[:cut], *place, *command[cut:]]


if __name__ == "__main__":
    sys.exit(main(JobFolder(Path(sys.argv[1])), sys.argv[2:]))
