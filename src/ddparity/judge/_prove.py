"""Whether a control may judge others: run twice, do the two runs agree?"""

from pathlib import Path

from ddparity._errors import TraceError
from ddparity.digest import same
from ddparity.trace import ControlProof, DigestRow, Site

from . import numerics
from ._plan import multiset
from ._run import Key, Run, load_run
from ._update import SKIPPED
from ._verdict import Status

_UNMOVED = "no parameter moves: the optimizer does not hold the model's parameters"

_NO_GRADIENT = (
    "no parameter moves: every gradient is zero; the loss does not depend on the parameters (it is detached, or a "
    "softmax over one class)"
)


def prove_control(first: Path, repeat: Path) -> ControlProof:
    """Compare two runs of the same single-device command.

    Returns:
        PROVED, or FAILED with the reason: not repeatable beyond the floor, NaN or Inf, no parameter that moves, or
        nothing recorded.
    """
    try:
        one, two = load_run(first), load_run(repeat)
        reason = _fault(one) or _starts_elsewhere(one, two) or _fault(two)
        reason = reason or _other_samples(one, two) or _not_repeatable(one, two)
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
    return nonfinite(run) or ("" if _moves(run) else _NO_GRADIENT if _all_gradients_vanish(run) else _UNMOVED)


def _starts_elsewhere(one: Run, two: Run) -> str:
    """Say that the second run did not begin where the first one did; empty if it did, or did not begin."""
    first, second = _initial(one), _initial(two)
    if not any(key in second and not same(row.digest, second[key].digest) for key, row in first.items()):
        return ""
    return (
        "the second run begins with other parameters: it resumes from a checkpoint that the first one left, or its "
        "start is not seeded; let the command seed itself, and begin anew each time (another output folder, no resume, "
        "or an end before it saves: --stop-after-steps)"
    )


def nonfinite(run: Run) -> str:
    """Say where a control holds NaN or infinity first: nothing can be held against that; empty if nowhere."""
    steps = run.ranks[min(run.ranks)] if run.ranks else {}
    for number in run.complete_steps:
        if any(event.name == SKIPPED for event in steps[number].updates):  # a gradient scaler lowers its scale
            continue
        for site in (Site.ACTIVATION, Site.SYNCED_GRADIENT, Site.PARAMETER_AFTER):
            for (name, _), rows in steps[number].digests.get(site, {}).items():
                if any(not row.digest.finite for row in rows):
                    return f"NaN or infinity at step {number}: {site} of {name}"
    return ""


def _moves(run: Run) -> bool:
    steps, initial = run.ranks[min(run.ranks)], _initial(run)
    after = {k: rows[-1] for s in steps.values() for k, rows in s.digests.get(Site.PARAMETER_AFTER, {}).items()}
    return any(not same(initial[key].digest, row.digest) for key, row in after.items() if key in initial)


def _all_gradients_vanish(run: Run) -> bool:
    steps = run.ranks[min(run.ranks)]
    found = [row for s in steps.values() for rows in s.digests.get(Site.SYNCED_GRADIENT, {}).values() for row in rows]
    return bool(found) and not any(row.digest.norm for row in found)


def _initial(run: Run) -> dict[Key, DigestRow]:
    steps = run.ranks[min(run.ranks)] if run.ranks else {}
    return {
        k: rows[0]
        for _, s in sorted(steps.items(), reverse=True)
        for k, rows in s.digests.get(Site.PARAMETER, {}).items()
    }


def _other_samples(one: Run, two: Run) -> str:
    """Say from which step on the second run trained on other samples than the first; empty if it did not."""
    ours, theirs = one.ranks[min(one.ranks)], two.ranks[min(two.ranks)]
    for step in sorted(set(one.complete_steps) & set(two.complete_steps)):
        if multiset(ours[step]) != multiset(theirs[step]):
            return (
                f"not repeatable: from step {step} on the second run has other samples; seed what shuffles, draws "
                "and augments: torch, numpy and Python's own random, in loader workers, too"
            )
    return ""


def _not_repeatable(one: Run, two: Run) -> str:
    verdict, findings, _ = numerics.judge(one, two)
    if verdict.status is Status.DEVIATES:
        first = findings[0]
        return f"not repeatable: step {first.step}, {first.phase}, {first.name}; seed it, or make it deterministic"
    return "" if verdict.status is Status.PASS else f"not repeatable: {verdict.reason}"
