"""The single device: does it repeat itself, are its gradients sane, does it learn, is its trial fresh?"""

import math
import time
from typing import Any

import numpy as np

from ddparity.preflight._ground import Ground
from ddparity.preflight._rows import DEVIATES, INCONCLUSIVE, NOT_TESTED, PASS, Row
from ddparity.trace import Event, Site
from ddparity.trace._schema import TrialFacts
from ddparity.trials._ladder import proved

_GREW = 1e3
"""A gradient norm that grows by this factor within the recorded steps is no longer level."""


def repeat(ground: Ground, row: Row) -> None:
    """Run the command twice on one device and hold the runs against each other."""
    facts, reused = ground.control
    row.trials = [facts.id]
    status, reason = proved(ground.spec.store, facts)
    row.status = {"PASS": PASS, "DEVIATES": DEVIATES, "FAILED": DEVIATES}.get(status, INCONCLUSIVE)
    row.evidence = "two runs agree bit by bit or within rounding" if status == PASS else reason
    row.numbers = {"reused": reused}
    if status != PASS:
        row.next = f"ddparity trials show {facts.name}"


def gradients(ground: Ground, row: Row) -> None:
    """Look at the norm of all gradients, step by step."""
    facts = ground.control[0]
    row.trials = [facts.id]
    norms = gradient_norms(ground, facts)
    row.numbers = {"norms": norms}
    if not norms:
        row.status, row.evidence = NOT_TESTED, "no gradient was recorded"
        return
    told = ", ".join(f"{norm:.4g}" for norm in norms)
    if not all(math.isfinite(norm) for norm in norms):
        row.status, row.evidence = DEVIATES, f"a norm is not finite: {told}"
    elif not all(norms):
        row.status, row.evidence = DEVIATES, f"all gradients are zero: {told}"
    elif max(norms) > _GREW * norms[0]:
        row.status, row.evidence = DEVIATES, f"the norm explodes: {told}"
        row.next = "lower the learning rate, or clip"
    else:
        row.status, row.evidence = PASS, f"{told} over {len(norms)} steps"


def gradient_norms(ground: Ground, facts: TrialFacts) -> list[float]:
    """Return the norm of all synchronised gradients of the first rank, step by step."""
    squares: dict[int, float] = {}
    ranks = ground.trial(facts).ranks
    for row in ranks[0].digests if ranks else []:
        if row.site.site == Site.SYNCED_GRADIENT:
            squares[row.step] = squares.get(row.step, 0.0) + row.digest.sum_sq
    return [math.sqrt(max(squares[step], 0.0)) for step in sorted(squares)]


def learns(ground: Ground, row: Row) -> None:
    """Train on the first batch over and over, without dropout, and look at the loss."""
    steps = ground.spec.steps
    command = ground.spec.alone.command
    options: dict[str, Any] = {"steps": f"{steps}", "level": "gradients", "stop_after_steps": steps}
    facts = ground.run("fixed", command, **options, fixed_batch=True, neutral_dropout=True)
    row.trials = [facts.id]
    if not ground.trial(facts).ranks:
        row.status, row.evidence = INCONCLUSIVE, f"the run recorded nothing; {ground.log(facts)}"
        return
    losses, fixed = losses_of(ground, facts)
    row.numbers = {"losses": losses, "fixed": fixed}
    if len(losses) < 3:
        row.status, row.evidence = NOT_TESTED, "backward was called on no single number: there is no loss to look at"
        return
    on = "a fixed batch" if fixed else "the script's own batches (pass them through ddparity.feed to fix one)"
    told = f"{losses[0]:.6g} -> {losses[-1]:.6g} in {len(losses)} steps on {on}"
    third = max(len(losses) // 3, 1)
    before, after = np.mean(losses[:third]), np.mean(losses[-third:])
    if not all(map(math.isfinite, losses)):
        row.status, row.evidence = DEVIATES, f"the loss is not finite: {told}"
    elif after < before:
        row.status, row.evidence = PASS, told
    elif fixed:
        row.status, row.evidence = DEVIATES, f"the loss does not fall: {told}"
        row.next = "look at the sign of the update, the learning rate, and whether the labels belong to the inputs"
    else:
        row.status, row.evidence = INCONCLUSIVE, f"the loss does not fall: {told}"


def losses_of(ground: Ground, facts: TrialFacts) -> tuple[list[float], bool]:
    """Return the loss of each step, and whether each step held the samples of the first."""
    rank = ground.trial(facts).ranks[0]
    losses: dict[int, float] = {}
    for event in rank.events:
        if event.kind == Event.BACKWARD and event.value is not None:
            losses[event.step] = losses.get(event.step, 0.0) + event.value
    held: dict[int, list[int]] = {}
    for sample in rank.samples:
        if sample.training:
            held.setdefault(sample.step, []).extend(sample.ids.tolist())
    contents = [sorted(ids) for step, ids in sorted(held.items()) if step in losses]
    fixed = len(contents) > 1 and all(each == contents[0] for each in contents)
    return [losses[step] for step in sorted(losses)], fixed


def control(ground: Ground, row: Row) -> None:
    """Say which control it is, how old, and that the code is still the one that made it."""
    facts, reused = ground.control
    row.trials = [facts.id]
    sources = ground.trial(facts).ranks[0].facts.sources
    age = time.time() - facts.started
    row.numbers = {"age_s": round(age, 1), "sources": len(sources), "reused": reused}
    files = f"{len(sources)} source file{'' if len(sources) == 1 else 's'} unchanged"
    row.status, row.evidence = PASS, f"{facts.id}, {age:.0f} s old, {files}"
