"""``python -m ddparity.gateway.trial``: what a job's phases run where a trial is recorded or judged.

Three words: ``control`` records the single-device path for a few steps, twice; ``candidate`` records the training;
``verdict`` holds the one against the other. Exit codes are those of ``ddparity record`` and ``ddparity compare``.
"""

import argparse
import sys
from pathlib import Path

from ddparity._errors import DdparityError, ExitCode, exit_code_of
from ddparity.trace import TrialStatus
from ddparity.trace._atomic import write_atomically
from ddparity.trials import RecordSpec, Store, record

CONTROL_STEPS = 3


def main(argv: list[str]) -> int:
    """Run one of the three words; return the exit code."""
    cut = argv.index("--") if "--" in argv else len(argv)
    own, command = argv[:cut], argv[cut + 1 :]
    args = _parsed(own)
    try:
        if args.word == "verdict":
            return _verdict(Store(args.store), args.control, args.candidate, args.out)
        return _record(args, command)
    except DdparityError as error:
        print(f"ddparity: {error}", file=sys.stderr)
        return int(error.exit_code)


def _parsed(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m ddparity.gateway.trial", description=__doc__)
    parser.add_argument("word", choices=["control", "candidate", "verdict"])
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--name", default="")
    parser.add_argument("--timeout", type=float)
    parser.add_argument("--control", default="")
    parser.add_argument("--candidate", default="")
    parser.add_argument("--out", type=Path)
    return parser.parse_args(argv)


def _record(args: argparse.Namespace, command: list[str]) -> int:
    control = args.word == "control"
    spec = RecordSpec(
        command=command,
        store=Store(args.store),
        name=args.name,
        control=control,
        steps=str(CONTROL_STEPS),
        stop_after_steps=CONTROL_STEPS if control else None,
        timeout_s=args.timeout,
    )
    facts = record(spec)
    for note in facts.notes:
        print(f"ddparity: {note}", file=sys.stderr)
    if facts.status is not TrialStatus.COMPLETED:
        return int(ExitCode.COMMAND_FAILED)
    if facts.proof is not None and facts.proof.status == "FAILED":
        print(f"ddparity: the single-device path did not repeat itself: {facts.proof.reason}", file=sys.stderr)
        return int(ExitCode.INCONCLUSIVE)
    return int(ExitCode.PASS)


def _verdict(store: Store, control: str, candidate: str, out: Path) -> int:
    from ddparity.judge import compare_and_measure
    from ddparity.report import render_html, render_json

    folders = store.find(control), store.find(candidate)
    measured = compare_and_measure(*folders)
    verdict = measured.verdict
    write_atomically(out, render_json(verdict).encode())
    write_atomically(out.with_suffix(".html"), render_html(verdict, measured.pictures).encode())
    return int(exit_code_of(verdict.exit_status()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
