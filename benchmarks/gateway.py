"""What the gateway bears, and how fast it clears up: submissions under load, and kills beside plain torchrun.

    python benchmarks/gateway.py load [--rate 200] [--clients 50] [--seconds 20]
    python benchmarks/gateway.py kills

``load`` starts a paused gateway (jobs are taken in, none is started) on loopback and lets ``clients`` threads
submit different jobs at a fixed rate together; the time of a submission counts from when it was due, so that a gateway
that falls behind cannot hide it. ``kills`` ends parts of a real training under the gateway and under plain torchrun.
"""

import argparse
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from ddparity.gateway.supervisor._linux import alive, parent, pids  # noqa: E402

from gateway_harness import SCRIPTS, Gateway, pids_of, tagged  # noqa: E402


def quantile(values, share):
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def client(url, first, every, start, seconds, number, told):
    """Submit one job every ``every`` seconds; tell the seconds of each and the codes."""
    took, codes = [], {}
    with httpx.Client(base_url=url, timeout=60, trust_env=False) as http:
        http.get("/healthz")
        count = 0
        due = start + first
        while due < start + seconds:
            time.sleep(max(0.0, due - time.time()))
            params = {"job_id": f"load-{number}-{count}", "world_size": 1, "batch_size": 8}
            code = http.post("/api/v1/jobs/submit", params=params).status_code
            took.append(time.time() - due)
            codes[code] = codes.get(code, 0) + 1
            count += 1
            due += every
    told.put((took, codes))


def swarm(url, numbers, clients, rate, start, seconds, told):
    """Run some of the clients as threads of one process: fifty interpreters would measure the scheduler."""
    import threading

    every = clients / rate
    threads = [
        threading.Thread(target=client, args=(url, number * every / clients, every, start, seconds, number, told))
        for number in numbers
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def load(args):
    folder = Path(tempfile.mkdtemp(prefix="ddparity-load-"))
    gateway = Gateway(folder / "store", "--paused").start()
    try:
        context = multiprocessing.get_context("spawn")
        told = context.Queue()
        start = time.time() + 8
        before = processor_seconds(gateway.process.pid)
        workers = [
            context.Process(
                target=swarm,
                args=(gateway.url, range(w, args.clients, 2), args.clients, args.rate, start, args.seconds, told),
            )
            for w in range(2)
        ]
        for worker in workers:
            worker.start()
        found = [told.get(timeout=args.seconds * 10 + 60) for _ in range(args.clients)]
        for worker in workers:
            worker.join()
        took = [each for times, _ in found for each in times]
        codes = {}
        for _, some in found:
            for code, count in some.items():
                codes[code] = codes.get(code, 0) + count
        spent = processor_seconds(gateway.process.pid) - before
        figures = {
            "submissions": len(took),
            "codes": codes,
            "asked_per_s": args.rate,
            "p50_ms": round(1000 * quantile(took, 0.5), 1),
            "p99_ms": round(1000 * quantile(took, 0.99), 1),
            "max_ms": round(1000 * max(took), 1),
            "processor_ms_each": round(1000 * spent / len(took), 2),
            "load_average": os.getloadavg()[0],
        }
        print(json.dumps(figures, indent=2))
    finally:
        gateway.stop()


def processor_seconds(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


CASES = [
    ("agent", "cooperative"),
    ("agent", "stubborn"),
    ("rank", "cooperative"),
    ("rank", "stubborn"),
    ("cancel", "cooperative"),
    ("cancel", "stubborn"),
]


def kills(args):
    print(f"{'killed':<8} {'ranks':<12} {'plain torchrun':<34} gateway")
    folder = Path(tempfile.mkdtemp(prefix="ddparity-kills-"))
    gateway = Gateway(folder / "store", stub=False).start()
    try:
        for part, kind in CASES:
            print(f"{part:<8} {kind:<12} {plain(folder, part, kind):<34} {under(gateway, part, kind)}", flush=True)
        for part in ("supervisor", "everything"):
            print(f"{part:<10} {'stubborn':<10} {'-':<34} {under(gateway, part, 'stubborn')}", flush=True)
    finally:
        gateway.stop()


def under(gateway, part, kind):
    words = ["stubborn"] if kind == "stubborn" else []
    job = gateway.submit(f"{part}-{kind}", entry="ddp.py", args=["1000000", *words])
    folder = gateway.wait_ranks(job, seconds=120)
    found = pids_of(folder)
    start = time.monotonic()
    if part == "cancel":
        gateway.http.post(f"{gateway.url}/api/v1/jobs/{job}/cancel")
    else:
        everything = [*found["supervisor"], *found["agent"], *found["ranks"]]
        for pid in everything if part == "everything" else found[part]:
            os.kill(pid, signal.SIGKILL)
    status = gateway.wait(job, seconds=120)["status"]
    return f"{status} after {time.monotonic() - start:.1f} s, {len(tagged(folder.name))} left"


def plain(folder, part, kind):
    work = folder / f"plain-{part}-{kind}"
    work.mkdir()
    words = ["stubborn"] if kind == "stubborn" else []
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    env = {**os.environ, "DDPARITY_JOB": work.name, "OMP_NUM_THREADS": "1"}
    agent = subprocess.Popen(
        [*command, str(SCRIPTS / "ddp.py"), "1000000", *words],
        cwd=work, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    while not all((work / f"ready-0-{rank}").exists() for rank in range(2)):
        time.sleep(0.05)
    ranks = [pid for pid in pids() if parent(pid) == agent.pid and alive(pid)]
    start = time.monotonic()
    if part == "cancel":
        agent.terminate()
    else:
        os.kill(agent.pid if part == "agent" else ranks[-1], signal.SIGKILL)
    try:
        agent.wait(timeout=45)
    except subprocess.TimeoutExpired:
        agent.kill()
        agent.wait()
    took = time.monotonic() - start
    time.sleep(2)
    left = tagged(work.name)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    return f"ends after {took:.1f} s, {len(left)} left"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=["load", "kills"])
    parser.add_argument("--rate", type=float, default=200.0)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=20.0)
    args = parser.parse_args()
    (load if args.what == "load" else kills)(args)


if __name__ == "__main__":
    main()
