"""What a step leaves to the next one, where something other than the optimizer changed parameters in between.

Averaging parameters in place of gradients, broadcasting each rank's share of an update, clipping weights, a teacher
that follows: what counts is the end. Ranks that part inside a step and leave it with the control's parameters have
done nothing wrong; ranks that leave it apart have, however well the optimizer's step agreed.
"""

from dataclasses import dataclass

from ddparity.digest import distance
from ddparity.trace import DigestRow, Event, Site

from ._logical import merge_parameter
from ._run import Key, RankStep

_SHARE = 0.05
"""How near to the control's the end must be, of how far the ranks were apart before: what a small step cannot hide."""

Steps = dict[int, RankStep]
"""Training step -> what a rank recorded in it."""


@dataclass(frozen=True)
class LeftParameter:
    """One parameter as a step left it, where that is not what the optimizer left on some side.

    Attributes:
        control: The control's.
        held: Rank -> its own; None where the rank should hold one and left none.
        changed_on: Ranks on which something changed it after the optimizer's step.
        in_control: Whether something did so in the control.
    """

    name: str
    part: str
    control: DigestRow
    held: dict[int, DigestRow | None]
    changed_on: list[int]
    in_control: bool


@dataclass(frozen=True)
class Left:
    """What a step left.

    Attributes:
        settled: Whether training went on afterwards on every side, so that nothing else changed before the next step.
        changed: The parameters that were changed after the optimizer's step, in the control's order.
        mended: Whether ranks that parted at the optimizer's step left the step with the control's parameters.
    """

    settled: bool = False
    changed: tuple[LeftParameter, ...] = ()
    mended: bool = False


def left_of(step: int, control: Steps, candidate: dict[int, Steps], floor: float) -> Left:
    """Find what one step left on both sides.

    Args:
        step: Number of the step.
        control: The control's steps.
        candidate: Rank -> its steps.
        floor: Relative error up to which two parameters are taken to be equal.
    """
    ours, theirs = control[step], {rank: steps[step] for rank, steps in candidate.items() if step in steps}
    settled = all(Event.SETTLED in side.events for side in (ours, *theirs.values()))
    keys = list(
        dict.fromkeys(key for side in (ours, *theirs.values()) for key in side.digests.get(Site.PARAMETER_LEFT, {}))
    )
    changed: list[LeftParameter] = []
    for key in keys:
        frozen = not any(side.digests.get(Site.PARAMETER_AFTER, {}).get(key) for side in (ours, *theirs.values()))
        mine = _at_end(control, step, key, frozen=frozen)
        if mine is not None:
            held = {rank: _at_end(candidate[rank], step, key, frozen=frozen) for rank in theirs}
            on = [rank for rank, side in theirs.items() if key in side.digests.get(Site.PARAMETER_LEFT, {})]
            in_control = key in ours.digests.get(Site.PARAMETER_LEFT, {})
            changed.append(LeftParameter(*key, mine, held, on, in_control))
    return Left(settled, tuple(changed), _is_mended(changed, theirs, floor))


def _at_end(steps: Steps, step: int, key: Key, *, frozen: bool) -> DigestRow | None:
    """Return a parameter as a step left it; a frozen one that nothing changed is as it was last recorded."""
    found = steps[step].rows(Site.PARAMETER_LEFT, *key) or steps[step].rows(Site.PARAMETER_AFTER, *key)
    earlier = step
    while not found and frozen and earlier in steps:
        found = steps[earlier].rows(Site.PARAMETER, *key)
        earlier -= 1
        if not found and earlier in steps:
            found = steps[earlier].rows(Site.PARAMETER_LEFT, *key)
    return found[-1] if found else None


def _is_mended(changed: list[LeftParameter], ranks: dict[int, RankStep], floor: float) -> bool:
    """Whether the optimizer's step left ranks apart, and all parameters that were so are the control's at the end."""
    ended = {(left.name, left.part): left for left in changed if left.changed_on}
    apart = 0
    if not ended:
        return False
    for key in dict.fromkeys(key for side in ranks.values() for key in side.digests.get(Site.PARAMETER_AFTER, {})):
        rows = {rank: next(iter(side.rows(Site.PARAMETER_AFTER, *key)[-1:]), None) for rank, side in ranks.items()}
        before = merge_parameter(rows)
        if before is None or before.reason or before.spread == 0.0:
            continue
        apart += 1
        left = ended.get(key)
        after = None if left is None else merge_parameter(left.held)
        if left is None or after is None or after.reason or after.digest.shape != left.control.digest.shape:
            return False
        off = max(distance(after.digest, left.control.digest), after.spread)
        if off > min(_SHARE * before.spread, floor * left.control.digest.norm):
            return False
    return apart > 0
