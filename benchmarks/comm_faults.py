"""What faults of communication look like: to torch alone, to its own tools, and to ddparity; and when one knows.

    python benchmarks/comm_faults.py [--only FAULT...] [--json]

Each fault of ``tests/scripts/comm_faults.py`` and of ``tests/scripts/comm_training.py`` is run on two gloo ranks with a
time-out of 6 s (8 s in the trainings): as it is, under ``TORCH_DISTRIBUTED_DEBUG=DETAIL``, with a dump of the flight
recorder 3.6 s after the fault and at the end, and under ``ddparity record --hang-after 10 --on-hang stop``. Of the
dumps ``torchfrtrace`` is asked twice: as they are, and with the table of groups put right. What ddparity says is the
answer of ``ddparity hang``.

All seconds are counted from the moment at which the first rank comes to the fault: until the command has ended, and
until the verdict is printed, the start of an interpreter included. *sites* counts the ranks for which the verdict names
a place in the user's script.
"""

import argparse
import json
import os
import pickle
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

SCRIPTS = Path(__file__).parents[1] / "tests" / "scripts"
BIN = Path(sys.executable).parent
LIMIT = 45.0
HANG_AFTER = 10.0
CALLS = {
    "swapped_operation": "all_reduce and broadcast swapped",
    "swapped_order": "two all_reduces of one shape swapped",
    "size": "sizes 4 and 8",
    "shape": "shapes (2, 4) and (4, 2)",
    "dtype": "float32 and float64",
    "dtype_silent": "float32 and int32",
    "reduce_op": "sum and maximum",
    "root": "broadcast from 0 and from 1",
    "layout": "one tensor transposed in memory",
    "gaps": "a slice with gaps, on both",
    "missing": "a rank does not come",
    "extra": "one all_reduce too many before a barrier",
    "gather_for_reduce": "all_reduce and all_gather",
    "raises": "a rank raises",
    "exits": "`os._exit(0)`",
    "ends": "the program ends early",
    "killed": "SIGKILL",
    "stopped": "SIGSTOP",
    "groups_differ": "groups of other ranks",
    "deadlock": "each rank in another group",
    "overwritten": "a buffer written over in flight",
    "never_waited": "a handle thrown away",
    "transfer": "send of 4, receive of 8",
}
TRAININGS = {
    "unwaited": "read by the optimizer before `wait`",
    "skipped": "a reduction left out on one rank",
    "small_group": "gradients reduced over too small a group",
    "slow_rank": "a rank 200 ms slower a step",
    "slow_loader": "the same delay in its loader",
}
SILENT = frozenset(
    {"swapped_order", "shape", "dtype_silent", "reduce_op", "layout", "gaps", "overwritten", "transfer"}
    | {"never_waited", "unwaited", "skipped", "small_group"}
)
"""Faults that torch alone lets pass: the run ends well, with wrong numbers or by luck with right ones."""
_DETECTED = re.compile(r"[Dd]etected mismatch between collectives|monitoredBarrier|failed to pass|missing ranks?", re.S)
_FOUND = re.compile(r"(MatchState|MatchInfo|COLLECTIVE_\w+|SIZE_OR_SYNTAX_MISMATCH|Not all ranks joining|KeyError)")
_SITE = re.compile(r"\b(?:comm_faults|comm_training)\.py:\d+")


@dataclass
class Row:
    """One fault: what each way of running it tells."""

    fault: str
    bare: str
    detail: str
    stock: str
    repaired: str
    code: str
    sites: int
    ended_after: float | None
    verdict_after: float | None


@dataclass
class Ran:
    """One command: how it ended, how long after the fault, and what it printed."""

    code: int | None
    after: float | None
    output: str
    fault_at: float | None

    @property
    def ending(self) -> str:
        """How the run ended, in a word: the first signal of a rank, else the exit code."""
        signals = re.findall(r"exitcode\s*:\s*(-\d+)", self.output)
        culprit = re.search(r"Root Cause.*?rank\s*:\s*(\d+)", self.output, re.S)
        if self.code is None:
            return f"hangs, ended after {LIMIT:.0f} s"
        if self.code == 0:
            return "ends with 0"
        names = [signal.Signals(-int(number)).name for number in signals if int(number) != -signal.SIGTERM]
        what = names[0] if names else "time-out" if re.search(r"[Tt]imed out", self.output) else "error"
        if what == "error" and re.search(r"[Cc]onnection (closed|reset)", self.output):
            what = "connection lost"
        return f"{what}, torchrun blames rank {culprit[1]}" if culprit else what


def launcher(script: str, fault: str) -> list[str]:
    """Return the command of a fault."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return [*command, str(SCRIPTS / f"{script}.py"), fault]


def run(command: list[str], **variables: str) -> Ran:
    """Run a command to its end or the limit, in a session of its own."""
    with tempfile.TemporaryDirectory() as marks, tempfile.TemporaryFile("w+") as output:
        env = {**os.environ, "OMP_NUM_THREADS": "1", "FAULT_MARKS": marks, **variables}
        started = subprocess.Popen(command, env=env, stdout=output, stderr=output, start_new_session=True)
        try:
            code: int | None = started.wait(LIMIT)
        except subprocess.TimeoutExpired:
            code = None
        end = time.time()
        _end_all(started, marks)
        times = [float(path.read_text()) for path in Path(marks).glob("rank-*") if path.stat().st_size]
        output.seek(0)
        first = min(times, default=None)
        return Ran(code, None if first is None else end - first, output.read(), first)


def _end_all(started: subprocess.Popen[bytes], marks: str) -> None:
    """End what carries this run's mark in its environment, which nothing else does."""
    tag = f"FAULT_MARKS={marks}".encode()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if tag in (entry / "environ").read_bytes().split(b"\0"):
                os.kill(int(entry.name), signal.SIGKILL)
        except OSError:
            continue
    started.wait(10)


def told_by_detail(script: str, fault: str) -> str:
    """Run a fault with torch's own checks of every call."""
    done = run(launcher(script, fault), TORCH_DISTRIBUTED_DEBUG="DETAIL")
    after = "" if done.after is None else f" after {done.after:.1f} s"
    found = _DETECTED.search(done.output)
    if "Detected mismatch" in done.output:
        return f"detects{after}"
    if found and done.code:
        return f"`{found[0]}`{after}"
    return f"nothing; {done.ending}{after}"


def told_by_recorder(script: str, fault: str) -> tuple[str, str]:
    """Ask torch's analyser of the flight recorder about a run's dumps, as they are and with their groups put right."""
    with tempfile.TemporaryDirectory() as folder:
        run(launcher(script, fault), FAULT_DUMPS=folder)
        dumps = sorted(Path(folder).glob("rank_*"))
        for other in Path(folder).glob("*.json"):
            other.unlink()
        if len(dumps) < 2:
            missing = f"dump of {len(dumps)} of 2 ranks"
            return missing, missing
        stock = _analysed(folder)
        for dump in dumps:
            document = pickle.loads(dump.read_bytes())  # noqa: S301 - a dump that this benchmark has just made
            named = {tuple(entry["process_group"]) for entry in document["entries"]}
            document["pg_config"] = {n: {"name": n, "desc": text, "ranks": "[0, 1]"} for n, text in named}
            dump.write_bytes(pickle.dumps(document))
        return stock, _analysed(folder)


def _analysed(folder: str) -> str:
    done = subprocess.run(
        [str(BIN / "torchfrtrace"), folder, "-p", "rank_"], capture_output=True, text=True, timeout=60, check=False
    )
    text = done.stdout + done.stderr
    words = [word for word in _FOUND.findall(text) if word not in ("MatchState", "MatchInfo")]
    return ", ".join(dict.fromkeys(words)) or ("nothing" if done.returncode == 0 else "an error")


def told_by_ddparity(script: str, fault: str, store: Path) -> tuple[str, int, float | None, float | None]:
    """Record a fault and ask about it; return cause, places named, and when the run ended and the verdict came."""
    record = [str(BIN / "ddparity"), "record", "--store", str(store), "--name", fault, "--timeout", str(LIMIT)]
    record += ["--hang-after", str(HANG_AFTER), "--on-hang", "stop", "--"]
    done = run([*record, *launcher(script, fault)])
    asked = subprocess.run(
        [str(BIN / "ddparity"), "hang", "--store", str(store), fault, "--json"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    after = None if done.fault_at is None else time.time() - done.fault_at
    try:
        findings = json.loads(asked.stdout)["findings"]
    except ValueError:
        return f"failed: {asked.stderr[-200:]}", 0, done.after, after
    if not findings:
        return "nothing", 0, done.after, after
    return findings[0]["cause"]["code"], len(_placed(findings[0])), done.after, after


def _placed(finding: dict[str, Any]) -> set[int]:
    """Return the ranks for which a finding names a place in the user's script."""
    found: set[int] = set()
    for key, value in finding["evidence"].items():
        told = value.items() if isinstance(value, dict) else [(key, value)]
        for name, text in told:
            if _SITE.search(str(text)):
                ranks = re.findall(r"\d+", name) if str(name).startswith("rank") else finding["ranks"] or []
                found.update(map(int, ranks))
    return found


def row(script: str, fault: str, store: Path) -> Row:
    """Run one fault in all ways."""
    bare = run(launcher(script, fault))
    after = "" if bare.after is None else f" after {bare.after:.1f} s"
    silent = ", silent" if bare.code == 0 and fault in SILENT else ""
    with_dumps = script == "comm_faults"
    stock, repaired = told_by_recorder(script, fault) if with_dumps else ("not run", "not run")
    detail = told_by_detail(script, fault)
    code, sites, ended, verdict = told_by_ddparity(script, fault, store)
    return Row(fault, f"{bare.ending}{after}{silent}", detail, stock, repaired, code, sites, ended, verdict)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", metavar="FAULT", help="run these; default: all")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    faults = [("comm_faults", name) for name in CALLS] + [("comm_training", name) for name in TRAININGS]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for script, fault in faults:
            if not args.only or fault in args.only:
                rows.append(row(script, fault, Path(folder) / "store"))
                print(json.dumps(asdict(rows[-1])), file=sys.stderr, flush=True)
    if args.json:
        print(json.dumps([asdict(each) for each in rows], indent=2))
        return
    print("| fault | torch alone | torchfrtrace, repaired | DETAIL | ddparity | sites | verdict after |")
    print("| --- | --- | --- | --- | --- | ---: | ---: |")
    for each in rows:
        what = (CALLS | TRAININGS)[each.fault]
        seconds = "" if each.verdict_after is None else f"{each.verdict_after:.1f} s"
        print(f"| {what} | {each.bare} | {each.repaired} | {each.detail} | `{each.code}` | {each.sites} | {seconds} |")


if __name__ == "__main__":
    main()
