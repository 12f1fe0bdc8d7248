"""Evaluation: did the ranks together evaluate exactly the samples that one device evaluates, once each?

What enters a model without training it, between two training steps, is one evaluation. Ranks may share its samples,
each evaluate all of them, or leave it to one of them; a sample that counts twice or not at all is a finding.
"""

from collections import Counter
from dataclasses import dataclass

from ddparity.trace import Event

from . import _causes
from ._run import RankStep, Run
from ._verdict import Finding, Phase

_MIN_SHARE = 0.5
"""Share of the evaluated samples that must be the control's before numbers of the rest say anything."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What one evaluation came to.

    Attributes:
        step: Number of training steps before it.
        wanted: Samples that the control evaluated.
        held: Rank -> samples that it evaluated.
        dropped: Samples that a framework repeated so that every rank has as many, and took out of its results again.
        limited: Whether both sides left the evaluation's loader before its end: after a number of batches, whose size
            need not be the same.
    """

    step: int
    wanted: Counter[int]
    held: dict[int, Counter[int]]
    limited: bool = False
    dropped: int = 0

    @property
    def union(self) -> Counter[int]:
        """All that the ranks evaluated, copies of a rank's whole share counted once."""
        leaders: list[Counter[int]] = []
        for counter in self.held.values():
            if counter not in leaders:
                leaders.append(counter)
        return sum(leaders, Counter[int]())

    @property
    def matches(self) -> bool:
        """Whether each sample was evaluated as often as by the control: shared, copied, or on one rank."""
        shares = [counter for counter in self.held.values() if counter]
        return sum(shares, Counter[int]()) == self.wanted or self.union == self.wanted or self._repeats_were_dropped

    @property
    def _repeats_were_dropped(self) -> bool:
        """Whether all samples are there, and as many of them more than once as were taken out of the results."""
        held = sum(self.held.values(), Counter[int]())
        repeated = held - self.wanted
        if not 0 < self.dropped == repeated.total():
            return False
        return held - repeated == self.wanted and repeated.keys() <= self.wanted.keys()

    @property
    def comparable(self) -> bool:
        """Whether enough of the samples are the control's, and which they are does not depend on the batch size."""
        union = self.union
        if self.limited and union <= self.wanted:
            return False
        return (self.wanted & union).total() >= _MIN_SHARE * min(self.wanted.total(), union.total()) > 0


def evaluations(control: Run, candidate: Run) -> list[Evaluation]:
    """Return the evaluations that both sides made after the same number of training steps."""
    if not control.ranks or len(candidate.ranks) < candidate.world_size:
        return []
    ours = control.ranks[min(control.ranks)]
    found = []
    for step in sorted(ours):
        wanted = evaluated(ours[step])
        held = {rank: evaluated(steps[step]) for rank, steps in sorted(candidate.ranks.items()) if step in steps}
        if wanted and any(held.values()):
            limited = _left_early(control, step) and _left_early(candidate, step)
            dropped = _dropped(candidate, step)
            found.append(Evaluation(step=step, wanted=wanted, held=held, limited=limited, dropped=dropped))
    return found


def _dropped(run: Run, step: int) -> int:
    """Return how many rows each rank took out of what it had gathered; 0 where they do not agree."""
    found = {
        sum(event.value or 0.0 for event in steps[step].events.get(Event.EVAL_DROPPED, []))
        for steps in run.ranks.values()
        if step in steps
    }
    return int(found.pop()) if len(found) == 1 else 0


def _left_early(run: Run, step: int) -> bool:
    """Whether a loader that is evaluated was begun after ``step`` training steps and never came to its end."""
    evaluated = {event.name for event in run.events(Event.LOADER_USE) if not event.data.get("training")}
    ended = {(event.name, event.data.get("epoch")) for event in run.events(Event.LOADER_END)}
    begun = [event for event in run.events(Event.LOADER) if event.step == step and event.name in evaluated]
    return any((event.name, event.data.get("epoch")) not in ended for event in begun)


def evaluated(step: RankStep) -> Counter[int]:
    """Return how often each sample entered a model without training it."""
    found: Counter[int] = Counter()
    for row in step.samples:
        if not row.training:
            found.update(row.ids.tolist())
    return found


def judge_evaluations(found: list[Evaluation]) -> tuple[int, list[Finding]]:
    """Return how many evaluations could be compared, and what is wrong with their samples."""
    able = [evaluation for evaluation in found if evaluation.matches or evaluation.comparable]
    return len(able), [_finding(evaluation) for evaluation in able if not evaluation.matches]


def judge_split(candidate: Run) -> list[Finding]:
    """Find samples that one rank evaluates and another trains on, while no rank does so with its own."""
    trained: dict[int, set[int]] = {}
    held_out: dict[int, set[int]] = {}
    for rank, steps in candidate.ranks.items():
        rows = [row for _, step in sorted(steps.items()) for row in step.samples]
        trained[rank] = {sample for row in rows if row.training for sample in row.ids.tolist()}
        held_out[rank] = {sample for row in rows if not row.training for sample in row.ids.tolist()}
    if any(trained[rank] & held_out[rank] for rank in trained):
        return []  # a training accuracy, a teacher, a target network
    everywhere: set[int] = set().union(*trained.values())
    both = {rank: evaluated & everywhere for rank, evaluated in held_out.items() if evaluated & everywhere}
    if not both:
        return []
    first = min(
        s for rank in both for s, step in candidate.ranks[rank].items() if any(not r.training for r in step.samples)
    )
    return [
        Finding(
            layer="data",
            step=first,
            phase=Phase.DATA,
            name="sample_ids",
            site="input",
            ranks=sorted(both),
            evidence={"trained_and_evaluated": len(set().union(*both.values()))},
            cause=_causes.cause("data.split_differs"),
            next=_causes.advice("data.split_differs"),
        )
    ]


def _finding(evaluation: Evaluation) -> Finding:
    union, wanted = evaluation.union, evaluation.wanted
    twice = sum(count - wanted[sample] for sample, count in union.items() if 0 < wanted[sample] < count)
    missing = (wanted - union).total()
    others = sum(count for sample, count in union.items() if sample not in wanted)
    sizes = {rank: counter.total() for rank, counter in evaluation.held.items()}
    code = _code(twice, missing, others, even=len(set(sizes.values())) == 1)
    return Finding(
        layer="data",
        step=evaluation.step,
        phase=Phase.EVAL,
        name="sample_ids",
        site="input",
        ranks=_ranks_with_copies(evaluation) if twice else None,
        evidence={
            "control_samples": wanted.total(),
            "candidate_samples": union.total(),
            "evaluated_too_often": twice,
            "missing": missing,
            "not_in_control": others,
            "samples_by_rank": {str(rank): size for rank, size in sizes.items()},
            "error_up_to": round((twice + missing + others) / max(union.total(), wanted.total()), 6),
        },
        cause=_causes.cause(code),
        next=_causes.advice(code),
    )


def _code(twice: int, missing: int, others: int, *, even: bool) -> str:
    if twice and not missing and not others:
        return "eval.padded" if even else "eval.repeated"
    if missing and not twice and not others:
        return "eval.dropped"
    return "eval.other_samples"


def _ranks_with_copies(evaluation: Evaluation) -> list[int]:
    """Return the ranks that hold a sample which the ranks together hold too often."""
    union, wanted = evaluation.union, evaluation.wanted
    often = {sample for sample, count in union.items() if 0 < wanted[sample] < count}
    return sorted(rank for rank, counter in evaluation.held.items() if not often.isdisjoint(counter))
