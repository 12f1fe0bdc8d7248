"""The launch without a fault: the ranks, their data, memory and calls, and the numbers on the way up."""

from ddparity._errors import TraceError
from ddparity.judge.communication import examine_trial
from ddparity.preflight._ground import Ground
from ddparity.preflight._rows import DEVIATES, INCONCLUSIVE, PASS, Row
from ddparity.trials._ladder import FAILED, broken, climb, worked


def launch(ground: Ground, row: Row) -> None:
    """Bring the ranks up, train for a few steps, and look at what each recorded of itself."""
    spec, facts = ground.spec, ground.rehearsal
    row.trials = [facts.id]
    trial = ground.trial(facts)
    if not worked(facts, ground.folder(facts)):
        row.status = DEVIATES
        row.evidence = _why_failed(ground) or broken(spec.store, facts)
        row.next = f"run it without ddparity first, and see {ground.folder(facts) / 'private' / 'output.log'}"
        return
    ranks = [rank.facts for rank in trial.ranks]
    worlds, backends = sorted({rank.world_size for rank in ranks}), sorted({rank.backend or "none" for rank in ranks})
    versions = sorted({rank.versions.get("torch", "?") for rank in ranks})
    run, _ = examine_trial(ground.folder(facts), status=facts.status)
    limits = sorted({limit for group in run.groups.values() for limit in group.timeouts.values() if limit is not None})
    row.numbers = {
        "ranks": [rank.rank for rank in ranks],
        "world_size": worlds,
        "backend": backends,
        "torch": versions,
        "timeouts_s": limits,
        "hosts": sorted({rank.hostname for rank in ranks}),
        "command": facts.command,
    }
    limit = f", time-out {'/'.join(f'{each:g}' for each in limits)} s" if limits else ""
    told = f"{len(ranks)} of {spec.nproc} ranks, {'/'.join(backends)}, torch {'/'.join(versions)}{limit}"
    if len(ranks) == spec.nproc and worlds == [spec.nproc] and len(backends) == len(versions) == 1:
        row.status, row.evidence = PASS, told
    else:
        row.status, row.evidence = DEVIATES, f"{told}; world size {worlds}, missing ranks {trial.missing_ranks}"


def _why_failed(ground: Ground) -> str:
    facts = ground.rehearsal
    try:
        _, found = examine_trial(ground.folder(facts), status=facts.status)
    except TraceError:
        return ""
    return f"{found[0].cause.text} [{found[0].cause.code}, {found[0].name}]" if found else ""


def data(ground: Ground, row: Row) -> None:
    """Audit which rank got which sample."""
    _layer(ground, row, "data")


def memory(ground: Ground, row: Row) -> None:
    """Look at what each rank holds, whether it grows, and how near the capacity it comes."""
    _layer(ground, row, "memory")
    if "OOM-PRONE" in row.evidence:
        row.status = DEVIATES


def calls(ground: Ground, row: Row) -> None:
    """Compare the ranks' collective calls."""
    _layer(ground, row, "communication")


def _layer(ground: Ground, row: Row, layer: str) -> None:
    facts = ground.rehearsal
    row.trials = [facts.id]
    found = ground.verdict.layers[layer]
    row.status, row.evidence, row.numbers = found.status.value, found.reason, {"checked": found.checked}
    first = ground.verdict.first(layer)
    if first is not None:
        row.evidence = f"{found.reason}: {first.cause.text} [{first.cause.code}]"
        row.next = f"ddparity compare {ground.control[0].name} {facts.name}"


def ladder(ground: Ground, row: Row) -> None:
    """Climb from one device to the target; rungs that the store has are not run again."""
    answer = climb(ground.spec.ladder)
    row.trials = [rung.trial for rung in answer.rungs if rung.trial is not None]
    row.numbers = {"rungs": {rung.label: rung.status for rung in answer.rungs}, "stopped_at": answer.stopped_at}
    row.status = DEVIATES if answer.status in (DEVIATES, FAILED) else PASS if answer.status == "PASS" else INCONCLUSIVE
    done = [rung for rung in answer.rungs if rung.trial is not None]
    if answer.stopped_at is None:
        odd = [f"rung {rung.label}: {rung.reason}" for rung in done if rung.status not in ("PASS", "SKIPPED")]
        row.evidence = "; ".join(odd) or f"{len(done)} rungs, up to {ground.spec.nproc} processes"
        return
    stopped = next(rung for rung in done if rung.label and rung.number == answer.stopped_at and rung.status != "PASS")
    cause = (
        "" if stopped.finding is None else f": {stopped.finding['cause']['text']} [{stopped.finding['cause']['code']}]"
    )
    row.evidence = f"rung {stopped.label} ({stopped.title}): {stopped.reason}{cause}"
    row.next = answer.next
