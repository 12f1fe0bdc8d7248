"""False alarms: 60 healthy distributed trainings, each held against one device; not one may be called a deviation.

    python benchmarks/false_alarms.py [--quick] [--json] [--only TEXT]

Models (MLP, CNN with GroupNorm and in-place ReLU, transformer with a tied head, mixture of experts),
optimizers (SGD with momentum, AdamW in its foreach and its fused form), 2, 3 and 4 ranks under DDP with gloo, gradient
accumulation 1 and 4, samples shared out in order or shuffled, and a seed for each model and optimizer. A control is
recorded once and judges all the runs of its model and optimizer. Exit code 1 if there is a false alarm.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path

from ddparity.judge import Status, compare_trials
from ddparity.trials import RecordSpec, Store, record

SCRIPT = Path(__file__).parents[1] / "tests" / "scripts" / "judged.py"
MODELS = {"MLP": "mlp", "CNN": "cnn", "transformer": "gpt", "MoE": "moe"}
OPTIMIZERS = {"SGD": "momentum", "AdamW": "adamw", "AdamW fused": "fused"}
SHAPES = ((2, 1, False), (2, 4, True), (3, 1, True), (3, 4, False), (4, 1, True))
"""Ranks, micro-batches a rank and step, shuffled."""


@dataclass(frozen=True)
class Case:
    """One healthy run and the flags that its control shares."""

    model: str
    optimizer: str
    seed: int
    ranks: int
    accumulation: int
    shuffled: bool

    @property
    def common(self) -> list[str]:
        model, optimizer = MODELS[self.model], OPTIMIZERS[self.optimizer]
        return ["--model", model, "--opt", optimizer, "--batch", "48", "--steps", "4", "--seed", str(self.seed)]

    @property
    def command(self) -> list[str]:
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={self.ranks}"]
        more = ["--accum", str(self.accumulation), *(["--shuffle"] if self.shuffled else [])]
        return [sys.executable, *launcher, str(SCRIPT), *self.common, *more]


@dataclass(frozen=True)
class Result:
    """What the judge said of a healthy run."""

    status: str
    data: str
    checked: int
    seconds: float
    said: str


def cases(*, quick: bool) -> list[Case]:
    """Return every combination, or eight that have each model, optimizer and number of ranks in them."""
    pairs = list(product(MODELS, OPTIMIZERS))
    every = [Case(m, o, 1000 + i, *shape) for i, (m, o) in enumerate(pairs) for shape in SHAPES]
    return every[1::8] if quick else every


class Bench:
    """Records controls once, candidates each, and compares them."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._controls: dict[tuple[str, ...], Path] = {}

    def judge(self, case: Case) -> Result:
        start = time.perf_counter()
        control = self._control(case)
        candidate = self._record(f"run-{time.time_ns()}", case.command)
        verdict = compare_trials(control, candidate)
        numerics, first = verdict.layers["numerics"], verdict.first()
        said = "; ".join(verdict.partial_reasons) or numerics.reason
        if first is not None:
            said = f"step {first.step} {first.phase} {first.name} ({first.cause.code})"
        seconds = time.perf_counter() - start
        return Result(numerics.status, verdict.layers["data"].status, numerics.checked, seconds, said)

    def _control(self, case: Case) -> Path:
        key = tuple(case.common)
        if key not in self._controls:
            command = [sys.executable, str(SCRIPT), *case.common]
            self._controls[key] = self._record(f"control-{len(self._controls)}", command)
        return self._controls[key]

    def _record(self, name: str, command: list[str]) -> Path:
        spec = RecordSpec(command=command, store=self._store, name=name, quiet=True, timeout_s=200.0, steps="4")
        return self._store.path(record(spec).id)


def table(done: list[tuple[Case, Result]]) -> str:
    """Return one row a model and optimizer: how its runs were judged."""
    lines = ["| model | optimizer | runs | PASS | INCONCLUSIVE | false alarms | comparisons |", "| --- " * 7 + "|"]
    for model, optimizer in product(MODELS, OPTIMIZERS):
        mine = [result for case, result in done if (case.model, case.optimizer) == (model, optimizer)]
        if mine:
            counts = Counter(result.status for result in mine)
            alarms = sum(is_alarm(result) for result in mine)
            numbers = (
                len(mine),
                counts[Status.PASS],
                counts[Status.INCONCLUSIVE],
                alarms,
                sum(r.checked for r in mine),
            )
            lines.append(f"| {model} | {optimizer} | " + " | ".join(map(str, numbers)) + " |")
    return "\n".join(lines)


def is_alarm(result: Result) -> bool:
    return Status.DEVIATES in (result.status, result.data)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="eight runs instead of 60")
    parser.add_argument("--json", action="store_true", help="print one JSON document and nothing else")
    parser.add_argument("--only", default="", help="only the models with this text in their name")
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    done: list[tuple[Case, Result]] = []
    with tempfile.TemporaryDirectory(prefix="false-alarms-") as folder:
        bench = Bench(Store(Path(folder)))
        for case in cases(quick=args.quick):
            if args.only in case.model:
                done.append((case, bench.judge(case)))
                if not args.json:
                    show(*done[-1])
    alarms = sum(is_alarm(result) for _, result in done)
    inconclusive = sum(result.status == Status.INCONCLUSIVE for _, result in done)
    if args.json:
        rows = [{**asdict(case), **asdict(result)} for case, result in done]
        print(json.dumps({"runs": len(done), "false_alarms": alarms, "inconclusive": inconclusive, "rows": rows}))
    else:
        print(f"\n{table(done)}\n\n{len(done)} healthy runs: {alarms} false alarms, {inconclusive} inconclusive")
    return 1 if alarms else 0


def show(case: Case, result: Result) -> None:
    order = "shuffled" if case.shuffled else "in order"
    what = f"{case.model}, {case.optimizer}, seed {case.seed}, {case.ranks} ranks x {case.accumulation}, {order}"
    text = "" if result.status == Status.PASS and not is_alarm(result) else f"  {result.said}"
    print(f"{result.status:12} {result.checked:5} checks {result.seconds:6.1f} s  {what}{text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
