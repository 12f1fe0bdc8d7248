"""A real Slurm cluster of a few nodes on one machine: slurmctld and one slurmd a node, no systemd, no root needed."""

import getpass
import os
import signal
import subprocess
import time
from pathlib import Path

CONFIG = """
ClusterName=gw
SlurmctldHost=localhost(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
CredType=cred/none
SlurmctldPort={port}
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool-%n
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/slurmd-%n.pid
SlurmctldLogFile={root}/slurmctld.log
SlurmdLogFile={root}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
MpiDefault=none
SwitchType=switch/none
KillWait=10
MinJobAge=86400
SlurmctldTimeout=30
SlurmdTimeout=60
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:8
"""
NODE = "NodeName=n{n} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs=2 State=UNKNOWN"


class Cluster:
    """The cluster in ``root``."""

    def __init__(self, root: Path, port: int, num_nodes: int = 2) -> None:
        self.root, self.num_nodes = root, num_nodes
        (root / "state").mkdir(parents=True)
        nodes = "\n".join(NODE.format(n=n, port=port + n) for n in range(1, num_nodes + 1))
        self.config = root / "slurm.conf"
        self.config.write_text(CONFIG.format(user=getpass.getuser(), port=port, root=root, nodes=nodes))
        self.env = {**os.environ, "SLURM_CONF": str(self.config)}
        self.env["PATH"] += os.pathsep + "/usr/sbin"

    def run(self, *command: str) -> str:
        done = subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=30, check=False)
        return done.stdout + done.stderr

    def start_controller(self) -> None:
        self.run("slurmctld", "-f", str(self.config))

    def start(self) -> None:
        self.start_controller()
        for n in range(1, self.num_nodes + 1):
            self.run("slurmd", "-f", str(self.config), "-N", f"n{n}")
        deadline = time.monotonic() + 30
        while self.run("sinfo", "-h", "-o", "%T %D").strip() != f"idle {self.num_nodes}":
            assert time.monotonic() < deadline, self.run("sinfo", "-Nl")
            time.sleep(0.1)

    def kill_controller(self) -> None:
        os.kill(int((self.root / "slurmctld.pid").read_text()), signal.SIGKILL)

    def stop(self) -> None:
        self.run("scancel", "-u", getpass.getuser())
        self.run("scontrol", "shutdown")
        deadline = time.monotonic() + 15
        while any(self._pids()) and time.monotonic() < deadline:
            time.sleep(0.1)
        for pid in self._pids():
            os.kill(pid, signal.SIGKILL)

    def _pids(self) -> list[int]:
        found = []
        for path in self.root.glob("*.pid"):
            try:
                pid = int(path.read_text())
                os.kill(pid, 0)
                found.append(pid)
            except (OSError, ValueError):
                continue
        return found
