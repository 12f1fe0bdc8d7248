"""Whether a control may judge others: run twice, do the two runs agree?"""

from pathlib import Path

from ddparity._errors import TraceError
from ddparity.digest import same
from ddparity.trace import ControlProof, Site

from . import numerics
from ._run import Run, load_run
from ._verdict import Status

_UNMOVED = "no parameter moves: the optimizer does not hold the model's parameters"


def prove_control(first: Path, repeat: Path) -> ControlProof:
    """Compare two runs of the same single-device command.

    Returns:
        PROVED, or FAILED with the reason: not repeatable beyond the floor, NaN or Inf, no parameter that moves, or
        nothing recorded.
    """
    try:
        one, two = load_run(first), load_run(repeat)
        reason = _fault(one) or _fault(two) or _not_repeatable(one, two)
    except TraceError as error:
        return ControlProof(status="FAILED", reason=str(error), repeat=repeat.name)
    return ControlProof(status="FAILED" if reason else "PROVED", reason=reason, repeat=repeat.name)


def _fault(run: Run) -> str:
    if run.world_size != 1:
        return f"a control runs on one process, this one ran on {run.world_size}"
    reasons = run.partial_reasons()
    if reasons:
        return reasons[0]
    if not run.complete_steps:
        return "no training step was recorded: no optimizer stepped"
    return nonfinite(run) or ("" if _moves(run) else _UNMOVED)


def nonfinite(run: Run) -> str:
    """Say where a control holds NaN or infinity first: nothing can be held against that; empty if nowhere."""
    steps = run.ranks[min(run.ranks)] if run.ranks else {}
    for number in run.complete_steps:
        for site in (Site.ACTIVATION, Site.SYNCED_GRADIENT, Site.PARAMETER_AFTER):
            for (name, _), rows in steps[number].digests.get(site, {}).items():
                if any(not row.digest.finite for row in rows):
                    return f"NaN or infinity at step {number}: {site} of {name}"
    return ""


def _moves(run: Run) -> bool:
    steps = run.ranks[min(run.ranks)]
    initial = {k: rows[0] for s in steps.values() for k, rows in s.digests.get(Site.PARAMETER, {}).items()}
    after = {k: rows[-1] for s in steps.values() for k, rows in s.digests.get(Site.PARAMETER_AFTER, {}).items()}
    return any(not same(initial[key].digest, row.digest) for key, row in after.items() if key in initial)


def _not_repeatable(one: Run, two: Run) -> str:
    verdict, findings, _ = numerics.judge(one, two)
    if verdict.status is Status.DEVIATES:
        first = findings[0]
        return f"not repeatable: step {first.step}, {first.phase}, {first.name}; seed it, or make it deterministic"
    return "" if verdict.status is Status.PASS else f"not repeatable: {verdict.reason}"
