"""A training without torch: it waits, logs, fails or stays, as its arguments say."""

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from ddparity import log_metric

RANK = int(os.environ.get("RANK", "0"))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=0.0)
    parser.add_argument("--stubborn", action="store_true", help="ignore SIGTERM; have a grandchild that does too")
    parser.add_argument("--bare", action="store_true", help="the grandchild has an empty environment")
    parser.add_argument("--fail-rank", type=int)
    parser.add_argument("--fail-until", type=int, default=99, help="attempts that fail")
    parser.add_argument("--exit-code", type=int)
    parser.add_argument("--abort", action="store_true", help="finish, then abort in the interpreter's last moment")
    parser.add_argument("--flood", type=int, default=0, help="bytes to write")
    parser.add_argument("--daemon", action="store_true", help="leave a daemon behind")
    parser.add_argument("--echo", nargs="*", default=[])
    args = parser.parse_args()
    attempt = int(os.environ.get("DDPARITY_ATTEMPT", "0"))
    print("hello from rank", RANK, "attempt", attempt, *args.echo, flush=True)
    log_metric("epoch_1_loss", 0.5 + attempt, step=1)
    if args.stubborn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        env = {} if args.bare else None
        subprocess.Popen([sys.executable, "-S", "-c", STAY], start_new_session=True, env=env)
    if args.daemon:
        subprocess.Popen([sys.executable, "-S", "-c", STAY], start_new_session=True)
    for written in range(0, args.flood, 1000):
        print(f"{written:09d}", "x" * 989, flush=True)
    Path(f"ready-{attempt}-{RANK}").write_text("")
    deadline = time.monotonic() + args.seconds
    while time.monotonic() < deadline:
        time.sleep(0.02)
    if args.fail_rank == RANK and attempt < args.fail_until:
        raise ValueError(f"planted on rank {RANK}")
    if args.exit_code:
        raise SystemExit(args.exit_code)
    log_metric("final_accuracy", 0.75)
    log_metric("lost", float("nan"))
    if args.abort:
        sys.modules["last"] = Last()


STAY = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(300)"


class Last:
    """Aborts when the interpreter clears its modules, as gloo's threads do."""

    def __del__(self, abort=os.abort, sleep=time.sleep):
        sleep(1.0)  # the other ranks come to their end too
        abort()


main()
