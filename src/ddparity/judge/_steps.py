"""The steps of a comparison: which there are, and for each both sides, the merge plan and the floors."""

import math
from dataclasses import replace

from ddparity.trace import Event, Site

from ._context import StepContext, Tally
from ._floors import Floors, coarsest
from ._left import Left, left_of
from ._plan import SamplePlan, plan_reduction, plan_samples, wrapper_of
from ._run import RankStep, Run, has_tensors


def steps_of(control: Run, candidate: Run) -> list[int]:
    """Steps that both sides finished, and those that the candidate began with tensors on every rank."""
    theirs = set(control.complete_steps)
    finished = theirs & set(candidate.complete_steps)
    begun = {
        step
        for step in candidate.digested_steps
        if step in theirs and all(step in steps for steps in candidate.ranks.values())
    }
    return sorted(finished | begun) if candidate.ranks else []


def begins_anew(step: int, control: Run, candidate: Run) -> bool:
    """Whether both sides recorded their parameters at the start of this step, in a window that opened later on."""
    if step == min(candidate.digested_steps, default=step) or step - 1 in candidate.digested_steps:
        return False
    sides = [control.ranks[min(control.ranks)], *candidate.ranks.values()]
    return all(step in steps and steps[step].digests.get(Site.PARAMETER) for steps in sides)


def context_of(step: int, control: Run, candidate: Run, floors: Floors, tally: Tally) -> StepContext:
    ours = control.ranks[min(control.ranks)][step]
    theirs = {rank: steps[step] for rank, steps in sorted(candidate.ranks.items()) if step in steps}
    recorded = {rank: found for rank, found in theirs.items() if has_tensors(found) or not found.complete}
    silent = len(recorded) < len(theirs) if recorded else False
    theirs = recorded if silent else theirs
    samples = plan_samples(ours, theirs)
    if len(theirs) < candidate.world_size:
        reason = "not every rank recorded this step" if silent else "not every rank left a trace"
        samples = SamplePlan("Unproved", [[r] for r in theirs], reason=reason)
    reduction = plan_reduction(theirs, wrapper_of(candidate), floors.at(step).value * 4)
    left = _left(step, control, candidate, floors, tally)
    if left.mended:
        reduction = replace(reduction, observed="after the step", proved=True)
    return StepContext(step, ours, theirs, samples, reduction, floors, tally, _elsewhere(step, control), left=left)


def _left(step: int, control: Run, candidate: Run, floors: Floors, tally: Tally) -> Left:
    """Return what the step left; of the last one, after which nobody looked, what the steps before it did is taken."""
    left = left_of(step, control.ranks[min(control.ranks)], candidate.ranks, floors.at(step).value)
    if not left.settled and not left.changed and tally.mended:
        tally.unproved[f"parameters after step {step}"] = "no later step shows what the ranks make of theirs"
        return replace(left, mended=True)
    tally.mended = left.mended
    return left


def _elsewhere(step: int, control: Run) -> RankStep | None:
    """Return the step of the control next to this one that recorded tensors, or None."""
    steps = control.ranks[min(control.ranks)]
    near = [other for other in (step + 1, step - 1) if other in steps and has_tensors(steps[other])]
    return steps[near[0]] if near else None


def cut_short(run: Run, step: int) -> bool:
    """Whether some rank ended in the middle of a step, so that it may not have seen all its samples."""
    return len(run.ranks) == run.world_size and step not in run.complete_steps


def floors_of(control: Run, candidate: Run) -> Floors:
    """Return the floors for the coarsest dtype in which either side computed, and the control's depth."""
    dtypes: set[str] = set()
    depth = 0
    for run in (control, candidate):
        for steps in run.ranks.values():
            for step in steps.values():
                dtypes |= {str(e.data.get("dtype", "")) for e in step.events.get(Event.BACKWARD, [])}
                for site in (Site.ACTIVATION, Site.PARAMETER):
                    dtypes |= {row.digest.dtype for rows in step.digests.get(site, {}).values() for row in rows}
    for step in control.ranks[min(control.ranks)].values() if control.ranks else []:
        depth = max(depth, len(step.digests.get(Site.ACTIVATION, {})))
    if depth == 0:
        depth = max((len(e.data.get("modules", {})) for e in control.events(Event.MODEL)), default=0)
    return Floors(coarsest(dtypes), depth, since=min(candidate.digested_steps, default=0), terms=_terms(control))


def _terms(control: Run) -> int:
    """Return how many terms add up to an element of a gradient: elements of an activation per feature."""
    shapes = {
        row.digest.shape
        for steps in control.ranks.values()
        for step in steps.values()
        for rows in step.digests.get(Site.ACTIVATION, {}).values()
        for row in rows
        if row.digest.count
    }
    return max((math.prod(s) // (s[1] if len(s) >= 4 else s[-1]) for s in shapes if len(s) > 1), default=1)
