"""``ddparity demo``: one healthy and one faulty training of the shipped digits classifier, recorded and judged."""

import importlib.util
import sys

import typer

from ddparity._errors import CommandFailed, ExitCode, UsageError
from ddparity.cli._busy import Busy
from ddparity.cli._scratch import KeepOption, kept_or_thrown_away
from ddparity.judge import Finding, Status, Verdict, compare_trials
from ddparity.report import render_text
from ddparity.trace import TrialFacts, TrialStatus
from ddparity.trials import RecordSpec, Store, record, uninterrupted

WORKLOAD = "ddparity.workloads.digits"
FAULT = "unsynced"
FAULTY_PARAMETER = "fc2.weight"
STEPS = 6
TIMEOUT_S = 120.0


def demo(store: KeepOption = None) -> None:
    """Train a digits classifier on one device, on two processes, and on two with a planted fault; judge both.

    Exit code 0: the healthy run passes and the faulty one deviates as planted; otherwise 1.
    """
    _require("torch", "sklearn")
    with kept_or_thrown_away(store) as kept, Busy("training"):
        print("1/3  one device, twice: the control, proved against itself", flush=True)
        control = _record(kept, "single", _alone(), control=True)
        print("2/3  two processes, nothing wrong", flush=True)
        healthy = _record(kept, "healthy", _on_two_ranks())
        print(f"3/3  two processes, with a planted fault: {_fault_in_words()}", flush=True)
        faulty = _record(kept, "faulty", [*_on_two_ranks(), "--fault", FAULT])
        good = compare_trials(kept.path(control.id), kept.path(healthy.id))
        bad = compare_trials(kept.path(control.id), kept.path(faulty.id))
    _show("The healthy run against one device", good)
    _show("The run with the planted fault against one device", bad)
    as_planned = _explain(good, bad)
    if store is not None:
        print(f"\nThe trials are kept. See: ddparity compare single faulty --store {store}")
    raise typer.Exit(ExitCode.PASS if as_planned else ExitCode.DEVIATES)


def _require(*modules: str) -> None:
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(f"The demo trains for real and needs {' and '.join(missing)}: pip install 'ddparity[demo]'")


def _alone() -> list[str]:
    return ["-m", WORKLOAD, "--steps", str(STEPS)]


def _on_two_ranks() -> list[str]:
    return ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *_alone()]


def _record(store: Store, name: str, arguments: list[str], *, control: bool = False) -> TrialFacts:
    """Record a training; one that fails is judged all the same, and one that hangs ends the demo."""
    command = ["env", "OMP_NUM_THREADS=1", sys.executable, *arguments]
    facts = record(
        RecordSpec(command=command, store=store, name=name, control=control, timeout_s=TIMEOUT_S, quiet=True)
    )
    if uninterrupted(facts).status is TrialStatus.TIMED_OUT:
        raise CommandFailed(
            f"The training {name!r} took longer than {TIMEOUT_S:g} s. Try it alone: {' '.join(command)}"
        )
    return facts


def _fault_in_words() -> str:
    return f"the gradient of {FAULTY_PARAMETER} is never averaged over the processes"


def _show(title: str, verdict: Verdict) -> None:
    print(f"\n{title}\n{'-' * len(title)}")
    print(render_text(verdict))


def _explain(good: Verdict, bad: Verdict) -> bool:
    """Say in plain words what was to be seen, and return whether it was."""
    passed = good.exit_status() is Status.PASS
    first = bad.first("numerics")
    found = bad.layers["numerics"].status is Status.DEVIATES and first is not None and first.name == FAULTY_PARAMETER
    print("\nWhat to look at\n---------------")
    if passed:
        print("Healthy: same samples, same gradients as on one device, up to rounding. That is a PASS.")
    else:
        print("Healthy: this should have been a PASS and is not. Please report it with the text above.")
    if found and first is not None:
        print(f"Faulty: {_where(first)}")
        print(f"That is the parameter the fault was planted in: {_fault_in_words()}.")
        print("The loss of the first step is the same in all three runs, and later ones are only a little off.")
    else:
        print(f"Faulty: this should have named {FAULTY_PARAMETER} first and does not. Please report it.")
    return passed and found


def _where(finding: Finding) -> str:
    step = "" if finding.step is None else f", at step {finding.step}"
    return f"the first thing that deviates is {finding.name}{step}, in the phase {finding.phase}. {finding.cause.text}"
