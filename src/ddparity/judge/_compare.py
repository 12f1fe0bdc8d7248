"""Comparing two trials: each layer on its own, then the verdict."""

from pathlib import Path

from ddparity.trace import ControlProof

from . import communication, data, memory, numerics
from ._context import Tally
from ._floors import Measured
from ._measured import measure_floors
from ._next_trials import plan_between
from ._prove import nonfinite
from ._recording import Options, record_command
from ._run import Run, load_run
from ._stale import check_fresh
from ._varied import varied_facts
from ._verdict import Finding, LayerVerdict, Status, Verdict

_PINNED = "the samples were pinned to the control's; record without --pinned to examine what the loaders hand out"

_MADE_UP = (
    "the batches were made up, the same ones for the control and the ranks, in place of what the loaders hand out"
)


def compare_trials(control_dir: Path, candidate_dir: Path, *, allow_stale: bool = False) -> Verdict:
    """Hold a candidate against a control.

    Args:
        control_dir: Folder of the control trial, with ``trial.json`` and one rank.
        candidate_dir: Folder of the candidate trial.
        allow_stale: Judge although the code changed between the two; the verdict notes it.

    Raises:
        TraceError: If a file of either trial is missing or corrupt.
        StaleControl: If the code changed between the two, unless ``allow_stale``.
    """
    return judge_trials(control_dir, candidate_dir, allow_stale=allow_stale)[0]


def judge_trials(
    control_dir: Path, candidate_dir: Path, *, allow_stale: bool, tally: Tally | None = None
) -> tuple[Verdict, Run, Run]:
    """Do what ``compare_trials`` does, and return the two runs beside the verdict, for those who draw them.

    ``tally`` collects what was compared of the numbers, for those who want more of it than the findings.
    """
    control, candidate = load_run(control_dir), load_run(candidate_dir)
    notes = check_fresh(control.trial, candidate.trial, allow_stale=allow_stale)
    proof = control.trial.facts.proof
    control, floors, noted = _at_its_best(control, control_dir, candidate)
    numbers, found, plan = numerics.judge(control, candidate, floors, tally)
    layers = {"numerics": _trusted(numbers, control, proof)}
    findings = list(found)
    layers["data"], more = _data(control, candidate, found)
    findings += _following(more, len(findings))
    for name, layer in (("memory", memory), ("communication", communication)):
        layers[name], more = layer.judge(control, candidate)
        findings += _following(more, len(findings))
    memory.blame(findings)
    for finding in findings:
        finding.next = f"{finding.next} Then: {_next_commands(control, candidate)}"
    reasons = control.partial_reasons() + candidate.partial_reasons()
    varied, variables = varied_facts(control.trial, candidate.trial)
    names = [variable.name for variable in variables]
    verdict = Verdict(
        control=control.trial.facts.id,
        candidate=candidate.trial.facts.id,
        partial=bool(reasons),
        partial_reasons=reasons,
        varied=varied,
        confounded=len(names) > 1,
        variable=names[0] if len(names) == 1 else None,
        variables=names,
        next_trials=plan_between(control.trial, candidate.trial).commands if len(names) > 1 else [],
        notes=notes + noted,
        merge_plan=plan,
        throughput=communication.pace(control, candidate),
        layers=layers,
        findings=findings,
    )
    return verdict, control, candidate


def _data(control: Run, candidate: Run, numbers: list[Finding]) -> tuple[LayerVerdict, list[Finding]]:
    """Judge the data, unless the samples were pinned; metrics of models that have parted tell nothing of it."""
    if candidate.trial.facts.pinned is not None:
        return LayerVerdict(status=Status.NOT_TESTED, reason=_PINNED), []
    if candidate.trial.facts.synthetic:
        return LayerVerdict(status=Status.NOT_TESTED, reason=_MADE_UP), []
    return data.judge(control, candidate, parted=numbers[0].step if numbers else None)


def _at_its_best(control: Run, folder: Path, candidate: Run) -> tuple[Run, Measured | None, list[str]]:
    """Return what a candidate is best held against: a control's float64 run, or the control with measured floors.

    The runs that measured the floors stand beside the control (``record --control --floor``). One that is gone is
    noted, and the floors are then those of dtype and depth.
    """
    runs = control.trial.facts.floors
    if runs is None:
        return control, None, []
    wanted = {"float64": runs.float64, "moved": runs.moved}
    there = {kind: folder.parent / name for kind, name in wanted.items() if name and (folder.parent / name).is_dir()}
    gone = [name for kind, name in wanted.items() if name and kind not in there]
    notes = [f"the run {name} that measured a floor is gone; record the control again with --floor" for name in gone]
    if candidate.trial.facts.dtype == "float64" and control.trial.facts.dtype is None and "float64" in there:
        return load_run(there["float64"]), None, [*notes, "held against the control's run in float64"]
    return control, measure_floors(control, {kind: load_run(path) for kind, path in there.items()}), notes


def _next_commands(control: Run, candidate: Run) -> str:
    """Return the commands that record the candidate again and hold it against the same control."""
    facts = candidate.trial.facts
    name = f"{facts.name}-again"
    again = record_command(name, facts.command, Options.of(facts))
    return f"{again} && ddparity compare {control.trial.facts.name} {name}"


def _following(findings: list[Finding], first: int) -> list[Finding]:
    for finding in findings[1:]:
        finding.follows = first
    return findings


def _trusted(verdict: LayerVerdict, control: Run, proof: ControlProof | None) -> LayerVerdict:
    """Withhold a verdict that rests on a control which failed its proof, or is no control at all."""
    if proof is not None and proof.status == "FAILED":
        reason = f"the control failed its proof ({proof.reason}); repair the single-device path first"
        return LayerVerdict(status=Status.INCONCLUSIVE, checked=verdict.checked, reason=reason)
    if verdict.status is Status.PASS and (reason := nonfinite(control)):
        reason = f"the control holds {reason}: nothing can be held against that"
        return LayerVerdict(status=Status.INCONCLUSIVE, checked=verdict.checked, reason=reason)
    if control.world_size > 1:
        reason = f"the control ran on {control.world_size} processes; record one with --control on a single one"
        return LayerVerdict(status=Status.INCONCLUSIVE, checked=verdict.checked, reason=reason)
    return verdict
