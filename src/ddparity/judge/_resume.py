"""A resumed run against an uninterrupted one, rank by rank and step by step: what did the checkpoint not bring back?

Both run on the same ranks, so that everything is compared with itself. Where the resumed run goes on is found by its
parameters: they are those that the uninterrupted run had after some step. From there on the first deviation in the
order of computation is the finding.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ddparity.digest import relative_error, same
from ddparity.trace import FLAG_RANDOM, DigestRow, Event, Site

from . import _causes
from ._data_steps import ordered_ids
from ._floors import EPS
from ._run import RankStep, Run, load_run
from ._verdict import Finding, Phase, Status

_OF_MODULES = {"torch", "cuda"}
"""Generators that modules draw from."""
_FLOOR = 64.0
"""Relative errors below so many eps of the dtype are rounding: a checkpoint in the training dtype brings all bits."""


class Resumption(msgspec.Struct, kw_only=True):
    """What became of a run that was interrupted and resumed.

    Attributes:
        at_step: Steps that were done when it was interrupted.
        resumed_from: Steps whose result the resumed run started from; None if its parameters are of no step.
        compared: Steps of the uninterrupted run that were compared.
        checked: Number of comparisons.
        notes: What differs and did no harm, and what could not be told.
    """

    schema: int = 1
    status: Status
    reason: str
    at_step: int
    resumed_from: int | None = None
    compared: list[int] = []
    checked: int = 0
    notes: list[str] = []
    findings: list[Finding] = []


def judge_resumption(whole_dir: Path, resumed_dir: Path, *, at_step: int, num_steps: int) -> Resumption:
    """Hold a resumed run against the uninterrupted one.

    Args:
        whole_dir: Trial that ran through, with tensors recorded before and after ``at_step``.
        resumed_dir: Trial that resumed from the checkpoint, with tensors recorded from its start.
        at_step: Number of steps after which the first run was interrupted.
        num_steps: How many steps after ``at_step`` to compare.

    Raises:
        TraceError: A file of either trial is missing or corrupt.
    """
    return judge_resumed(load_run(whole_dir), load_run(resumed_dir), at_step=at_step, num_steps=num_steps)


def judge_resumed(whole: Run, resumed: Run, *, at_step: int, num_steps: int) -> Resumption:
    """Hold a resumed run against the uninterrupted one; see ``judge_resumption``."""
    answer = Resumption(status=Status.INCONCLUSIVE, reason="", at_step=at_step)
    if whole.ranks.keys() != resumed.ranks.keys() or not resumed.digested_steps:
        answer.reason = f"ranks {sorted(whole.ranks)} ran through, ranks {sorted(resumed.ranks)} resumed and recorded"
        return answer
    first = min(resumed.digested_steps)
    start = _start(whole, resumed, first, at_step)
    if start is None:
        return _nowhere(answer, whole, resumed, first)
    answer.resumed_from = start
    if start == 0 and at_step > 0:
        text = "the resumed run starts from the very first parameters: nothing was loaded"
        return _deviates(answer, text, [_finding(0, Phase.INIT, "*", "resume.from_scratch", "parameter")])
    for step in range(start, at_step + num_steps):
        pairs = _pairs(whole, resumed, step, step - start + first)
        if pairs is None:
            break
        answer.compared.append(step)
        found = [f for rank, (ours, theirs) in pairs.items() for f in _compare(answer, step, rank, ours, theirs)]
        if found:
            found = _ordered(found)
            _explain(found[0], pairs, whole, step)
            return _deviates(answer, f"step {step}, {found[0].phase}, {found[0].name}", found)
    if len(answer.compared) < at_step + num_steps - start:
        missing = at_step + num_steps - start - len(answer.compared)
        answer.reason = f"the last {missing} of the steps after resuming were not recorded on both sides"
        answer.status = Status.PASS if answer.compared and answer.compared[-1] >= at_step else Status.INCONCLUSIVE
        return answer
    answer.status = Status.PASS
    answer.reason = f"{answer.checked} comparisons over steps {answer.compared[0]} to {answer.compared[-1]} agree"
    return answer


def _start(whole: Run, resumed: Run, first: int, at_step: int) -> int | None:
    """Return after how many steps of the uninterrupted run its parameters are those that the resumed run started from.

    The number is that of the rank that agrees; ranks that do not are the first deviation.
    """
    for number in range(at_step, -1, -1):
        for rank, steps in resumed.ranks.items():
            mine = _initial(steps.get(first))
            theirs = _before(whole.ranks[rank], number)
            if mine and theirs and all(_equal(mine[name], theirs[name]) for name in mine.keys() & theirs.keys()):
                return number
    return None


def _initial(step: RankStep | None) -> dict[str, DigestRow]:
    rows = step.digests.get(Site.PARAMETER, {}) if step is not None else {}
    return {name: found[0] for (name, _), found in rows.items()}


def _before(steps: dict[int, RankStep], number: int) -> dict[str, DigestRow]:
    """Return a rank's parameters after ``number`` steps, as far as they were recorded."""
    if number == 0:
        return _initial(steps.get(0))
    sites = (Site.PARAMETER_AFTER, Site.PARAMETER_LEFT) if number - 1 in steps else ()
    rows = [item for site in sites for item in steps[number - 1].digests.get(site, {}).items()]
    return {name: found[-1] for (name, _), found in rows}


def _nowhere(answer: Resumption, whole: Run, resumed: Run, first: int) -> Resumption:
    rank = min(resumed.ranks)
    mine = _initial(resumed.ranks[rank].get(first))
    near = [_off(mine, _before(whole.ranks[rank], number)) for number in range(answer.at_step, -1, -1)]
    off: dict[str, float] = min((found for found in near if found), key=len, default={})
    if not off:
        answer.reason = "no parameters were recorded to find by where the resumed run goes on"
        return answer
    name = next(iter(off))
    few = len(off) < len(mine)
    code = "resume.parameters" if few else "resume.other_parameters"
    finding = _finding(
        answer.at_step, Phase.INIT, name, code, "parameter", relative_error=off[name], parameters=len(off)
    )
    text = f"{len(off)} of {len(mine)} parameters are those of no step up to {answer.at_step}"
    return _deviates(answer, text, [finding])


def _off(mine: dict[str, DigestRow], theirs: dict[str, DigestRow]) -> dict[str, float]:
    """Return the parameters that are not those of a step, with their relative errors."""
    common = [name for name in mine if name in theirs]
    return {n: relative_error(mine[n].digest, theirs[n].digest) for n in common if not _equal(mine[n], theirs[n])}


def _pairs(whole: Run, resumed: Run, step: int, theirs: int) -> dict[int, tuple[RankStep, RankStep]] | None:
    found = {}
    for rank, steps in sorted(whole.ranks.items()):
        if step not in steps or theirs not in resumed.ranks[rank]:
            return None
        ours, other = steps[step], resumed.ranks[rank][theirs]
        if not ours.complete or not other.complete or not other.digests.get(Site.PARAMETER_AFTER):
            return None
        found[rank] = (ours, other)
    return found


def _compare(answer: Resumption, step: int, rank: int, ours: RankStep, theirs: RankStep) -> Iterator[Finding]:
    """Yield what differs on one rank in one step, in the order of computation."""
    answer.checked += 1
    wanted, got = ordered_ids(ours), ordered_ids(theirs)
    if not np.array_equal(wanted, got):
        shared = len(np.intersect1d(wanted, got))
        numbers = {"samples": len(got), "in_common": shared, "another_order": shared == len(wanted) == len(got)}
        yield _finding(step, Phase.DATA, "sample_ids", "resume.samples", "input", rank, **numbers)
    random = _random(ours, theirs)
    differ = {name for name, state in random.items() if state[0] != state[1]}
    drawn = differ & _OF_MODULES if _draws(ours) else set[str]()
    if drawn:
        yield _finding(step, Phase.FORWARD, "rng", "resume.rng", "generator", rank, generators=sorted(drawn))
    if differ - drawn:
        note = f"generators not brought back, and not drawn from by the model: {', '.join(sorted(differ - drawn))}"
        answer.notes += [note] if note not in answer.notes else []
    yield from _tensors(answer, step, rank, ours, theirs, (Site.BUFFER, Site.ACTIVATION, Site.SYNCED_GRADIENT))
    yield from _scales(answer, step, rank, ours, theirs)
    yield from _hyper_parameters(answer, step, rank, ours, theirs)
    yield from _tensors(answer, step, rank, ours, theirs, (Site.PARAMETER_AFTER,))


def _random(ours: RankStep, theirs: RankStep) -> dict[str, tuple[Any, Any]]:
    mine, other = ours.events.get(Event.RNG, []), theirs.events.get(Event.RNG, [])
    if not mine or not other:
        return {}
    return {name: (state, other[0].data.get(name)) for name, state in mine[0].data.items()}


def _draws(step: RankStep) -> bool:
    rows = (row for found in step.digests.get(Site.ACTIVATION, {}).values() for row in found)
    return any(row.flags & FLAG_RANDOM for row in rows)


_PHASES = {
    Site.BUFFER: (Phase.BUFFER, "resume.buffers"),
    Site.ACTIVATION: (Phase.FORWARD, "resume.forward"),
    Site.SYNCED_GRADIENT: (Phase.BACKWARD, "resume.gradients"),
    Site.PARAMETER_AFTER: (Phase.OPTIMIZER, "resume.optimizer_state"),
}


def _tensors(
    answer: Resumption, step: int, rank: int, ours: RankStep, theirs: RankStep, sites: tuple[Site, ...]
) -> Iterator[Finding]:
    for site in sites:
        for (name, part), wanted in ours.digests.get(site, {}).items():
            got = theirs.rows(site, name, part)
            if not got or len(got) != len(wanted):
                continue
            answer.checked += 1
            off = next(
                (relative_error(g.digest, w.digest) for g, w in zip(got, wanted, strict=True) if not _equal(g, w)), None
            )
            if off is not None:
                phase, code = _PHASES[site]
                yield _finding(step, phase, name, code, str(site), rank, relative_error=float(f"{off:.6g}"))


def _scales(answer: Resumption, step: int, rank: int, ours: RankStep, theirs: RankStep) -> Iterator[Finding]:
    for kind in (Event.UNSCALE, Event.SCALE):
        wanted = [event.value for event in ours.events.get(kind, [])]
        got = [event.value for event in theirs.events.get(kind, [])]
        if not wanted or not got:  # the scale after a step is noted with the next one: before the first there is none
            continue
        answer.checked += 1
        if wanted != got:
            numbers = {"uninterrupted": wanted[:1], "resumed": got[:1]}
            yield _finding(step, Phase.LOSS, "loss_scale", "resume.scaler", "scaler", rank, **numbers)
            return


def _hyper_parameters(answer: Resumption, step: int, rank: int, ours: RankStep, theirs: RankStep) -> Iterator[Finding]:
    pairs = zip(ours.events.get(Event.OPTIMIZER, []), theirs.events.get(Event.OPTIMIZER, []), strict=False)
    for wanted, got in pairs:
        answer.checked += 1
        groups = zip(wanted.data.get("groups", []), got.data.get("groups", []), strict=False)
        for number, (mine, other) in enumerate(groups):
            for key in mine.keys() & other.keys() - {"initial_lr"}:
                if mine[key] != other[key]:
                    numbers = {"group": number, "uninterrupted": mine[key], "resumed": other[key]}
                    yield _finding(step, Phase.OPTIMIZER, key, "resume.schedule", "optimizer", rank, **numbers)


def _equal(a: DigestRow, b: DigestRow) -> bool:
    if same(a.digest, b.digest):
        return True
    if a.digest.shape != b.digest.shape or not (a.digest.finite and b.digest.finite):
        return False
    return relative_error(a.digest, b.digest) <= _FLOOR * EPS.get(b.digest.dtype, EPS["float32"])


def _ordered(findings: list[Finding]) -> list[Finding]:
    """Join what ranks have in common, and put the first in the order of computation first."""
    order = (Phase.DATA, Phase.FORWARD, Phase.LOSS, Phase.BACKWARD, Phase.BUFFER, Phase.OPTIMIZER)
    joined: dict[tuple[str, str, str], Finding] = {}
    for finding in findings:
        key = (finding.phase, finding.name, finding.site)
        known = joined.setdefault(key, finding)
        known.ranks = sorted({*(known.ranks or []), *(finding.ranks or [])})
    found = sorted(joined.values(), key=lambda f: (order.index(f.phase), f.site == Site.PARAMETER_AFTER))
    for later in found[1:]:
        later.follows = 0
    return found


def _explain(first: Finding, pairs: dict[int, tuple[RankStep, RankStep]], whole: Run, step: int) -> None:
    """Say more of the first deviation: where resumed samples come from, and which ranks are apart."""
    first.ranks_differ = first.ranks is not None and 0 < len(first.ranks) < len(pairs)
    if first.name != "sample_ids" or not first.ranks:
        return
    rank = first.ranks[0]
    got = ordered_ids(pairs[rank][1])
    for other, held in sorted(whole.ranks[rank].items()):
        if other != step and np.array_equal(ordered_ids(held), got):
            first.evidence["samples_of_step"] = other
            return


def _finding(
    step: int, phase: Phase, name: str, code: str, site: str, rank: int | None = None, **evidence: Any
) -> Finding:
    return Finding(
        layer="data" if phase is Phase.DATA else "numerics",
        step=step,
        phase=phase,
        name=name,
        site=site,
        ranks=None if rank is None else [rank],
        evidence=evidence,
        cause=_causes.cause(code),
        next=_causes.advice(code),
    )


def _deviates(answer: Resumption, reason: str, findings: list[Finding]) -> Resumption:
    answer.status, answer.reason, answer.findings = Status.DEVIATES, reason, findings
    return answer
