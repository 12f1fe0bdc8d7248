"""Communication parameters, one a trial: what each does to the numbers and to the time of a step.

They come last: while numbers, data or exits are wrong, a faster step is of no use.
"""

import itertools
import statistics
from typing import Any

from ddparity.judge import Status, compare_trials
from ddparity.preflight._ground import Ground
from ddparity.preflight._rows import DEVIATES, INCONCLUSIVE, NOT_TESTED, PASS, Row
from ddparity.trace import Event
from ddparity.trace._schema import TrialFacts
from ddparity.trials._ladder import worked

_WARM_UP = 3
_WRAPPER = "DistributedDataParallel"


def bucket_size(ground: Ground, row: Row) -> None:
    """Small buckets overlap more, large ones have fewer calls."""
    _try(ground, row, {"bucket_cap_mb=1": {"bucket_cap_mb": 1}, "bucket_cap_mb=100": {"bucket_cap_mb": 100}})


def bucket_view(ground: Ground, row: Row) -> None:
    """Gradients that are views of the buckets save a copy and memory."""
    _try(ground, row, {f"gradient_as_bucket_view={on}": {"gradient_as_bucket_view": on} for on in (True, False)})


def find_unused(ground: Ground, row: Row) -> None:
    """Without the search for unused parameters a step is faster, if there are none."""
    _try(ground, row, {f"find_unused_parameters={on}": {"find_unused_parameters": on} for on in (False, True)})
    without = row.numbers.get("find_unused_parameters=False", {}).get("status")
    if without is not None:
        needed = "is needed" if without != PASS else "is not needed"
        row.evidence = f"find_unused_parameters {needed}; {row.evidence}"
        if without != PASS and row.numbers.get("find_unused_parameters=True", {}).get("status") == PASS:
            row.status = PASS


def static_graph(ground: Ground, row: Row) -> None:
    """A graph that never changes needs no search, and lets checkpointed modules be used twice."""
    _try(ground, row, {"static_graph=True": {"static_graph": True}})


def interface(ground: Ground, row: Row) -> None:
    """The backend on the loopback interface against the one it chose."""
    _try(ground, row, {"GLOO_SOCKET_IFNAME=lo": {}}, env=["env", "GLOO_SOCKET_IFNAME=lo", "NCCL_SOCKET_IFNAME=lo"])


def _try(ground: Ground, row: Row, settings: dict[str, dict[str, Any]], env: list[str] | None = None) -> None:
    """Run the launch with each setting in place of the script's own."""
    wrapped = any(
        event.kind == Event.WRAP and event.name == _WRAPPER for event in ground.trial(ground.rehearsal).ranks[0].events
    )
    if not wrapped and env is None:
        row.status, row.evidence = NOT_TESTED, f"the model is not wrapped in {_WRAPPER}"
        return
    usual = step_ms(ground, ground.rehearsal)
    row.numbers = {"as it is": {"status": PASS, "step_ms": usual}}
    told = [f"as it is {_ms(usual)}"]
    for name, given in settings.items():
        command = [*(env or []), *ground.spec.target.command]
        facts = ground.run(f"{row.name}", command, steps="3", stop_after_steps=ground.spec.steps, wrapper=given)
        row.trials.append(facts.id)
        status, why = _numerics(ground, facts)
        row.numbers[name] = {"status": status, "step_ms": step_ms(ground, facts)}
        told.append(f"{name}: {status}{f' ({why})' if why else ''}, {_ms(row.numbers[name]['step_ms'])}")
    seen = [each["status"] for each in row.numbers.values()]
    row.status = next((each for each in (DEVIATES, INCONCLUSIVE) if each in seen), PASS)
    row.evidence = "; ".join(told)


def _numerics(ground: Ground, facts: TrialFacts) -> tuple[str, str]:
    if not worked(facts, ground.folder(facts)):
        return DEVIATES, "the run fails"
    verdict = compare_trials(ground.folder(ground.control[0]), ground.folder(facts))
    layer = verdict.layers["numerics"]
    return layer.status.value, "" if layer.status is Status.PASS else layer.reason


def step_ms(ground: Ground, facts: TrialFacts) -> float | None:
    """Return the median time of a step of the slowest rank, without the first few, in milliseconds."""
    slowest = None
    for rank in ground.trial(facts).ranks:
        ends = [event.time_ns for event in rank.events if event.kind == Event.STEP]
        times = [(b - a) / 1e6 for a, b in itertools.pairwise(ends)][_WARM_UP:]
        if times:
            slowest = max(slowest or 0.0, statistics.median(times))
    return None if slowest is None else round(slowest, 3)


def _ms(value: float | None) -> str:
    return "no step timed" if value is None else f"{value:.1f} ms a step"
