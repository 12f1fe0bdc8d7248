"""A stand-in for torchrun where torch is not what is tested: it starts and dies as the real one was measured to.

Ranks stand in sessions of their own. When one fails the others get SIGTERM and, 30 s later, SIGKILL. SIGTERM to the
agent ends the ranks; SIGKILL leaves them behind.
"""

import os
import signal
import subprocess
import sys
import time

SHUTDOWN_SECONDS = 30.0


class ChildFailedError(Exception):
    def __init__(self, failures):
        super().__init__("some ranks failed")
        self.failures = failures


ChildFailedError.__module__ = "torch.distributed.elastic.multiprocessing.errors"


class Failure:
    def __init__(self, exitcode):
        self.exitcode, self.timestamp = exitcode, time.time()


def close(ranks, seconds):
    for process in ranks.values():
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and any(process.poll() is None for process in ranks.values()):
        time.sleep(0.02)
    for process in ranks.values():
        process.kill()
        process.wait()


def main():
    words = sys.argv[1:]
    count = int(words[words.index("--nproc-per-node") + 1])
    command = words[words.index("--max-restarts") + 2 :]
    ranks = {}

    def stop(number, frame):
        close(ranks, float(os.environ.get("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", SHUTDOWN_SECONDS)))
        sys.exit(1)

    signal.signal(signal.SIGTERM, stop)
    nodes = next((int(word.partition("=")[2]) for word in words if word.startswith("--nnodes=")), 1)
    first = count * int(os.environ.get("SLURM_NODEID", "0")) if nodes > 1 else 0
    for rank in range(first, first + count):
        env = {**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank - first), "WORLD_SIZE": str(count * nodes)}
        ranks[rank] = subprocess.Popen([sys.executable, "-u", *command], env=env, start_new_session=True)
    while True:
        codes = {rank: process.poll() for rank, process in ranks.items()}
        failures = {rank: Failure(code) for rank, code in codes.items() if code}
        if failures:
            close(ranks, SHUTDOWN_SECONDS)
            raise ChildFailedError(failures)
        if all(code == 0 for code in codes.values()):
            return
        time.sleep(0.05)


if __name__ == "__main__":
    main()
