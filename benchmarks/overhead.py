"""What recording costs: a recorded training step against the bare step, side by side in one run.

    python benchmarks/overhead.py [--quick] [--json] [--rounds 12]

The training is the shipped tiny GPT: 4 layers, width 256, vocabulary 1000, 8 sequences of 128 tokens, AdamW, two
threads. Every variant trains in a process of its own; the processes take turns step by step, in another order each
time, so that whatever else the machine does meets all of them alike. The recorder is the one that ``ddparity record``
starts, set up in the same way.

A window of the recorder is three steps, as ``--steps 3`` makes it. Its first and last step also record the state of
the optimizer (twice as many numbers as there are parameters), so *ratio* compares the three steps of a window with
the three that the bare training made in the same round, and *middle* compares the middle one alone. Both are medians
over the rounds; *spread* is the range of the middle half. *CPU* is the same ratio in processor time.

A single process has no replicas, so it leaves the exact hash out. In the variants with *hash* the recorder is told that
it is one of two ranks: they have hashes, and the local gradients beside the synchronised ones.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

WINDOW = 3
PERIOD = 5  # a window of three recorded steps, then two that are not
WARM_UP = PERIOD
TARGETS = {"gradients": 1.4, "activations": 2.2, "closed window": 1.02}

Step = tuple[float, float]
"""Seconds and processor seconds of a step."""

VARIANTS: dict[str, dict[str, Any]] = {
    "bare": {},
    "gradients": {"level": "gradients"},
    "activations": {"level": "activations"},
    "gradients, hash": {"level": "gradients", "world_size": 2},
    "activations, hash": {"level": "activations", "world_size": 2},
    "closed window": {"level": "activations", "closed": True},
    "DebugMode, norm": {"debug_mode": "norm"},
    "DebugMode, hash_tensor": {"debug_mode": "hash_tensor"},
}


# -- the training process ---------------------------------------------------------------------------------------------


def serve(threads: int, debug_mode: str, world_size: int) -> None:
    """Make a training step for every line on standard input and answer with its seconds and processor seconds."""
    import torch

    from ddparity.workloads.tiny_gpt import Shape, TinyGPT, batch_of, train_step

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    shape = Shape(num_layers=4, width=256, num_heads=4, vocab=1000, seq=128)
    model = TinyGPT(shape)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    if world_size > 1:
        pretend(world_size)
    print("ready", flush=True)
    for step, _ in enumerate(sys.stdin):
        inputs, targets = batch_of(step, 8, shape, 0)
        start, cpu = time.perf_counter(), time.process_time()
        with ExitStack() as stack:
            if debug_mode:
                observe(stack, debug_mode)
            train_step(model, optimizer, inputs, targets)
        print(time.perf_counter() - start, time.process_time() - cpu, flush=True)


def observe(stack: ExitStack, hash_fn: str) -> None:
    """Log a hash of every operation's output, as ``torch.utils._debug_mode`` does."""
    from torch.utils._debug_mode import DebugMode

    stack.enter_context(DebugMode())
    stack.enter_context(DebugMode.log_tensor_hashes(hash_fn=hash_fn))


def pretend(world_size: int) -> None:
    """Let the recorder do what it does where there are replicas."""
    from ddparity.capture._session import current

    session = current()
    if session is None:
        raise RuntimeError("nothing records in this process")
    _ = session.writer
    session.world_size = world_size


class Trainer:
    """A process that makes a step when asked."""

    def __init__(self, name: str, folder: Path, threads: int, rounds: int) -> None:
        setting = VARIANTS[name]
        env = {k: v for k, v in os.environ.items() if not k.startswith("DDPARITY_")}
        if "level" in setting:
            env["DDPARITY_CAPTURE"] = json.dumps(
                {"trial_dir": str(folder), "level": setting["level"], "steps": windows(setting, rounds)}
            )
        env["OMP_NUM_THREADS"] = str(threads)
        command = [sys.executable, __file__, "--serve", "--threads", str(threads)]
        command += ["--debug-mode", setting.get("debug_mode", ""), "--world-size", str(setting.get("world_size", 1))]
        self.name, self.folder, self.steps = name, folder, list[Step]()
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
        self._expect("ready")

    def step(self) -> None:
        """Make a step and note its seconds and processor seconds."""
        assert self._process.stdin is not None
        self._process.stdin.write("step\n")
        self._process.stdin.flush()
        wall, cpu = self._expect().split()
        self.steps.append((float(wall), float(cpu)))

    def close(self) -> None:
        """Let the process end."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        if self._process.wait(timeout=60):
            raise RuntimeError(f"{self.name}: the training ended with exit code {self._process.returncode}")

    def kill(self) -> None:
        """End the process at once if it still runs."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def _expect(self, wanted: str = "") -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        if not line or (wanted and line != wanted):
            raise RuntimeError(f"{self.name}: the training said {line!r}")
        return line


def windows(setting: dict[str, Any], rounds: int) -> str:
    """Return the value of ``--steps``: a window a period, or one that is over after the warm-up."""
    if setting.get("closed"):
        return f"0:{WINDOW}"
    return ",".join(f"{PERIOD * i}:{PERIOD * i + WINDOW}" for i in range(rounds + WARM_UP // PERIOD))


# -- the measurement --------------------------------------------------------------------------------------------------


def measure(names: list[str], threads: int, rounds: int) -> tuple[dict[str, list[Step]], dict[str, float]]:
    """Return each variant's steps after the warm-up, and bytes a digest of those that record."""
    with tempfile.TemporaryDirectory(prefix="ddparity-overhead-") as folder, ExitStack() as stack:
        trainers = []
        for number, name in enumerate(names):
            trainers.append(Trainer(name, Path(folder) / str(number), threads, rounds))
            stack.callback(trainers[-1].kill)
        order = list(trainers)
        for _ in range(WARM_UP + rounds * PERIOD):
            random.shuffle(order)
            for trainer in order:
                trainer.step()
        for trainer in trainers:
            trainer.close()
        sizes = {t.name: size_of(t.folder) for t in trainers if "level" in VARIANTS[t.name]}
        return {t.name: t.steps[WARM_UP:] for t in trainers}, sizes


def size_of(folder: Path) -> float:
    """Return bytes on disk a digest, everything counted."""
    from ddparity.trace import RankFacts, RankTrace, read_json

    rank = next(folder.glob("rank-*"))
    facts = read_json(rank / "rank.json", RankFacts)
    if facts.partial:
        raise RuntimeError(f"the recording is partial: {facts.partial}")
    return sum(path.stat().st_size for path in rank.iterdir()) / len(RankTrace(rank, facts).digests)


def summary(name: str, steps: list[Step], bare: list[Step]) -> dict[str, Any]:
    """Return medians over the rounds: of seconds a step, and of ratios to the bare steps of the same round."""
    windowed = "level" in VARIANTS[name] and not VARIANTS[name].get("closed")
    length = WINDOW if windowed else PERIOD
    wall, wall_bare = (_rounds(s, 0, length, clock=0) for s in (steps, bare))
    cpu, cpu_bare = (_rounds(s, 0, length, clock=1) for s in (steps, bare))
    ratios = sorted(a / b for a, b in zip(wall, wall_bare, strict=True))
    row = {
        "seconds": statistics.median(wall) / length,
        "ratio": statistics.median(ratios),
        "spread": [ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]],
        "cpu_ratio": statistics.median(a / b for a, b in zip(cpu, cpu_bare, strict=True)),
    }
    if windowed:
        middle = zip(_rounds(steps, 1, 2, clock=0), _rounds(bare, 1, 2, clock=0), strict=True)
        row["middle_ratio"] = statistics.median(a / b for a, b in middle)
    return row


def _rounds(steps: list[Step], first: int, stop: int, *, clock: int) -> list[float]:
    """Return the time that steps ``first`` to ``stop`` of each round took together."""
    return [sum(s[clock] for s in steps[at + first : at + stop]) for at in range(0, len(steps), PERIOD)]


def report(results: dict[str, dict[str, Any]], sizes: dict[str, float], as_json: bool) -> None:
    """Print the table, or everything as JSON."""
    if as_json:
        print(json.dumps({"variants": results, "bytes_a_digest": sizes, "targets": TARGETS}, indent=2))
        return
    print("variant                   ms/step   ratio       spread  middle     CPU  target  bytes/digest")
    for name, row in results.items():
        low, high = row["spread"]
        middle = f"{row['middle_ratio']:.2f}" if "middle_ratio" in row else ""
        target = f"{TARGETS[name]:.2f}" if name in TARGETS else ""
        size = f"{sizes[name]:.0f}" if name in sizes else ""
        print(
            f"{name:24} {1e3 * row['seconds']:8.1f} {row['ratio']:7.3f} {low:6.2f}-{high:5.2f} {middle:>7} "
            f"{row['cpu_ratio']:7.3f} {target:>7} {size:>13}"
        )


def main() -> None:
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=12, help="windows of three steps a variant")
    parser.add_argument("--quick", action="store_true", help="two windows, without DebugMode and hashes")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", default="", help="names of variants, separated by ';'; bare is always there")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--debug-mode", default="", help=argparse.SUPPRESS)
    parser.add_argument("--world-size", type=int, default=1, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(args.threads, args.debug_mode, args.world_size)
        return
    names = ["bare", "gradients", "activations", "closed window"] if args.quick else list(VARIANTS)
    if args.only:
        names = ["bare", *(name for name in VARIANTS if name in args.only.split(";"))]
    steps, sizes = measure(names, args.threads, 2 if args.quick else args.rounds)
    results = {name: summary(name, steps[name], steps["bare"]) for name in names}
    report(results, sizes, args.json)


if __name__ == "__main__":
    main()
