"""The numbers that come out of an evaluation: the control's, or an average of averages?

A number counts as the evaluation's result on a rank that evaluated all samples, or where the ranks had talked to each
other before it was read and all that read it got the same. Others are numbers of one share.
"""

import re
from dataclasses import dataclass
from typing import Any

from ddparity.trace import Event, EventRow

from . import _causes
from ._data_eval import Evaluation
from ._floors import Floors, coarsest
from ._run import RankStep, Run
from ._verdict import Finding, Floor, Phase

_CLOSE = 1e-5
"""How near a relation must hold to be called by its name."""
_MAX_FLOOR = 1e-2
_OF_THE_MACHINE = re.compile(
    r"(?:\A|[_./ -])(?:run_?time|wall_?time|time|seconds|secs|elapsed|duration|latency|speed|throughput|tps|mfu|flops"
    r"|flos|memory)\Z|(?:samples|steps|tokens|it)_per_|per_(?:second|sec)\Z|_mem_|/s\Z",
    re.IGNORECASE,
)
"""How long it took and what it held, which no two runs have in common: ``eval_runtime``, ``samples_per_second``."""


Place = tuple[str, str]
"""Name of a number, and where in the code it was read (empty if it was logged)."""
Places = dict[Place, EventRow]


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One number of an evaluation on both sides.

    Attributes:
        name: As the code or the script calls it.
        control: Its value there.
        values: Rank -> value.
        whole: Whether the value should be that of all samples.
    """

    name: str
    control: float
    values: dict[int, float]
    whole: bool

    @property
    def agreed(self) -> float | None:
        """The value on which all ranks agree, if they do."""
        found = set(self.values.values())
        return next(iter(found)) if len(found) == 1 else None


def judge_metrics(
    control: Run, candidate: Run, found: list[Evaluation], samples: list[Finding], parted: int | None = None
) -> tuple[int, list[Finding]]:
    """Compare the numbers of each evaluation; the error of one whose samples are wrong goes into that finding.

    A number that differs in no known way says nothing about the data once the models have parted, after the training
    step ``parted``.

    Returns:
        How many numbers could be compared, and the findings.
    """
    ours = control.ranks[min(control.ranks)] if control.ranks else {}
    floors = _floors(control, candidate)
    wrong = {finding.step: finding for finding in samples}
    checked = 0
    findings: list[Finding] = []
    for evaluation in found:
        step = evaluation.step
        theirs = {rank: steps[step] for rank, steps in candidate.ranks.items() if step in steps}
        floor = Floor(value=min(floors.rounding(step), _MAX_FLOOR), source=floors.at(step).source)
        for metric in _metrics(evaluation, ours[step], theirs):
            if step in wrong:
                _add_error(wrong[step], metric)
            elif evaluation.matches:
                verdict = _judge(metric, evaluation, theirs, floor)
                follows = parted is not None and step > parted
                if follows and isinstance(verdict, Finding) and verdict.cause.code == "metric.differs":
                    continue
                checked += verdict is not None
                findings += [verdict] if isinstance(verdict, Finding) else []
    return checked, findings


def _floors(control: Run, candidate: Run) -> Floors:
    """Return how far rounding may drive metrics apart, from the dtype of the losses and the depth of the model."""
    backwards = [event for run in (control, candidate) for event in run.events(Event.BACKWARD)]
    depth = max((len(event.data.get("modules", {})) for event in control.events(Event.MODEL)), default=0)
    return Floors(coarsest({str(event.data.get("dtype", "")) for event in backwards}), depth)


def _metrics(evaluation: Evaluation, ours: RankStep, theirs: dict[int, RankStep]) -> list[Metric]:
    wanted = _by_place(ours)
    held = {rank: _by_place(step) for rank, step in sorted(theirs.items())}
    found: list[Metric] = []
    for place, other in _matched(wanted, held).items():
        event = wanted[place]
        there = {rank: events[other] for rank, events in held.items() if other in events}
        values = {rank: e.value for rank, e in there.items() if e.value is not None}
        if not values or event.value is None:
            continue
        alone = all(evaluation.held.get(rank) == evaluation.wanted for rank in values)
        reduced = all(bool(e.data.get("reduced", True)) for e in there.values())
        whole = alone or (reduced and len(set(values.values())) == 1)
        found.append(Metric(name=event.name, control=event.value, values=values, whole=whole))
    return found


def _matched(wanted: Places, held: dict[int, Places]) -> dict[Place, Place]:
    """Return which place of the candidate reads what a place of the control does.

    The same place; else, as where a branch reads the metric elsewhere, the one of that name, or the only one left over.
    """
    theirs = {place: None for events in held.values() for place in events}
    found = {place: place for place in wanted if place in theirs}
    ours_left = [place for place in wanted if place not in found]
    theirs_left = [place for place in theirs if place not in wanted]
    for place in ours_left:
        named = [other for other in theirs_left if other[0] == place[0]]
        if len(named) == 1 or (len(ours_left) == len(theirs_left) == 1):
            found[place] = (named or theirs_left)[0]
    return found


def _by_place(step: RankStep) -> Places:
    """Return the last value of each number of an evaluation: by its place in the code, or as it was logged.

    Numbers of the training that were logged in between, and those of the machine, are none of an evaluation.
    """
    return {
        (event.name, str(event.data.get("at", ""))): event
        for event in step.events.get(Event.METRIC, [])
        if event.data.get("compared", True) and not _OF_THE_MACHINE.search(event.name)
    }


def _add_error(finding: Finding, metric: Metric) -> None:
    value = metric.agreed
    if value is not None and metric.whole and value != metric.control:
        errors: dict[str, Any] = finding.evidence.setdefault("metrics", {})
        errors.setdefault(metric.name, {"control": metric.control, "candidate": value})


def _judge(metric: Metric, evaluation: Evaluation, theirs: dict[int, RankStep], floor: Floor) -> Finding | bool | None:
    """Return a finding, True where the number is the control's, or None where it says nothing."""
    if not metric.whole:
        return _of_one_share(metric, evaluation, theirs)
    far = {rank: value for rank, value in metric.values.items() if not _near(value, metric.control, floor.value)}
    num = evaluation.wanted.total()
    far = {rank: value for rank, value in far.items() if not _one_sample_apart(value, metric.control, num)}
    if not far:
        return True
    code = _relation(metric, evaluation, theirs)
    if code == "metric.differs" and floor.value >= _MAX_FLOOR:
        return None  # so many steps before it that rounding may explain anything
    return _finding(metric, evaluation, code, floor, sorted(far))


def _of_one_share(metric: Metric, evaluation: Evaluation, theirs: dict[int, RankStep]) -> Finding | None:
    """Find a mean over one rank's share that is read as if it were the whole: the ranks never talked to each other."""
    sizes = {rank: evaluation.held[rank].total() for rank in metric.values}
    spoken = any(e.data.get("reduced") for s in theirs.values() for e in s.events.get(Event.METRIC, []))
    if spoken or any(step.events.get(Event.EVAL_REDUCE) for step in theirs.values()):
        return None
    if len(metric.values) < len(evaluation.held) or len(set(metric.values.values())) == 1:
        return None
    weighted = sum(sizes[rank] * value for rank, value in metric.values.items()) / max(sum(sizes.values()), 1)
    if not _near(weighted, metric.control, _CLOSE) or metric.control == 0.0:
        return None
    return _finding(metric, evaluation, "metric.one_share", None, sorted(metric.values))


def _relation(metric: Metric, evaluation: Evaluation, theirs: dict[int, RankStep]) -> str:
    value = metric.agreed
    num = len(evaluation.held)
    if value is None or num < 2:
        return "metric.differs"
    sizes = {rank: counter.total() for rank, counter in evaluation.held.items()}
    for local in _locals(theirs):
        mean = sum(local.values()) / num
        weighted = sum(sizes[rank] * each for rank, each in local.items()) / max(sum(sizes.values()), 1)
        if _near(mean, value, _CLOSE) and _near(weighted, metric.control, _CLOSE):
            return "metric.mean_of_means"
    if any(_near(value, metric.control * factor, _CLOSE) for factor in (num, 1.0 / num)):
        return "metric.scaled"
    return "metric.differs"


def _locals(theirs: dict[int, RankStep]) -> list[dict[int, float]]:
    """Return, for each number that was all-reduced, what each rank put in."""
    lists = {rank: _inputs(step) for rank, step in theirs.items()}
    num = min((len(inputs) for inputs in lists.values()), default=0)
    return [{rank: inputs[i] for rank, inputs in lists.items()} for i in range(num)]


def _inputs(step: RankStep) -> list[float]:
    found: list[float] = []
    for event in step.events.get(Event.EVAL_REDUCE, []):
        before = event.data.get("before")
        found += (
            [float(value) for value in before if isinstance(value, (int, float))] if isinstance(before, list) else []
        )
    return found


def _near(value: float, wanted: float, tolerance: float) -> bool:
    return value == wanted or abs(value - wanted) <= tolerance * max(abs(wanted), abs(value))


def _one_sample_apart(value: float, wanted: float, num: int) -> bool:
    """Whether both are shares of all samples, and one sample that rounding tips the other way would explain it."""
    counts = (value * num, wanted * num)
    return all(abs(c - round(c)) < _CLOSE * num for c in counts) and abs(round(counts[0]) - round(counts[1])) <= 1


def _finding(metric: Metric, evaluation: Evaluation, code: str, floor: Floor | None, ranks: list[int]) -> Finding:
    sizes = {str(rank): counter.total() for rank, counter in evaluation.held.items()}
    return Finding(
        layer="data",
        step=evaluation.step,
        phase=Phase.EVAL,
        name=f"metric:{metric.name}",
        site="metric",
        ranks=ranks,
        ranks_differ=metric.agreed is None,
        evidence={
            "control": metric.control,
            "candidate": metric.agreed if metric.agreed is not None else {str(r): v for r, v in metric.values.items()},
            "samples_by_rank": sizes,
        },
        floor=floor,
        cause=_causes.cause(code, _causes.UNEXPLAINED if code == "metric.differs" else _causes.PROVED),
        next=_causes.advice(code),
    )
