"""A rank that ran out of memory, told as that: which step, which phase, and what it held."""

from typing import Any

from ._comm_run import CommRun, Error, short
from ._memory_finding import finding
from ._memory_run import MemoryRank, MemoryStep, size
from ._verdict import Finding

_TYPES = ("MemoryError", "OutOfMemoryError")
_KIND = "out_of_memory"
_SIGKILL = -9
_PHASES = {
    "forward": ("before_forward", "activations"),
    "backward": ("before_backward", "gradients"),
    "optimizer": ("before_optimizer", "optimizer_state"),
}


def out_of_memory(run: CommRun | None, ranks: dict[int, MemoryRank]) -> list[Finding]:
    """Return the first rank that ran out of memory, with all that did in the same step."""
    if run is None:
        return []
    errors = sorted(
        (
            (error.time, rank, error)
            for rank, member in run.members.items()
            for error in member.errors
            if error.kind == _KIND or error.type.rpartition(".")[2] in _TYPES
        ),
        key=lambda each: each[:2],
    )
    if not errors:
        return _killed(run, ranks)
    _, rank, error = errors[0]
    with_it = sorted({other for _, other, each in errors if each.step == error.step})
    mine = ranks.get(rank)
    phase, category = _phase_of(error, mine)
    return [
        finding(
            "memory.out_of_memory",
            category=category,
            step=error.step,
            ranks=with_it,
            ranks_differ=len(with_it) < len(run.members),
            detail=f"It was in {phase}, at {short(error.site)}.",
            error=f"{error.type} at {short(error.site)}",
            phase=phase,
            others={f"rank {r}": m.describe() for r, m in run.members.items() if r not in with_it},
            **_around(mine, error.step),
        )
    ]


def _phase_of(error: Error, mine: MemoryRank | None) -> tuple[str, str]:
    """Return the phase in which memory ran out, and the category that rises there.

    The stack says it where the error came out of torch. One that the script raised itself stands behind the phase
    that made memory rise the most.
    """
    for frame in reversed(error.stack):
        if "/optim/" in frame or "optimizer.py" in frame:
            return "the optimizer's step", "optimizer_state"
        if "/autograd/" in frame or "_tensor.py" in frame:
            return "backward", "gradients"
        if frame.endswith((" in forward", " in _call_impl")):
            return "forward", "activations"
        if "/checkpoint/" in frame or "serialization.py" in frame:
            return "saving or loading a checkpoint", "checkpoint"
    step = _step(mine, error.step)
    if step is None:
        return "forward", "activations"
    for phase, (before, category) in _PHASES.items():
        if before in step.points and phase not in step.points:  # it did not come to its end
            return ("the optimizer's step" if phase == "optimizer" else phase), category
    rises = {phase: _rise(step, before, phase) for phase, (before, _) in _PHASES.items()}
    phase = max(rises, key=lambda each: rises[each])
    if error.step == 0 and rises["optimizer"] > 0 and step.categories.get("optimizer_state", 0) > 0:
        phase = "optimizer"
    return ("the optimizer's step" if phase == "optimizer" else phase), _PHASES[phase][1]


def _step(mine: MemoryRank | None, step: int) -> MemoryStep | None:
    if mine is None:
        return None
    there = mine.unfinished if mine.unfinished is not None and mine.unfinished.step == step else None
    return there or mine.by_step.get(step)


def _rise(step: MemoryStep, before: str, after: str) -> int:
    return step.points.get(after, 0) - step.points.get(before, step.points.get(after, 0))


def _around(mine: MemoryRank | None, step: int) -> dict[str, Any]:
    """Return what the rank held in the step, and in the steps before it."""
    if mine is None:
        return {}
    now = _step(mine, step)
    told: dict[str, Any] = {}
    if now is not None:
        told = {f"held_{point}": size(held) for point, held in now.points.items()}
        told["categories"] = {name: size(each) for name, each in now.categories.items()}
    before = [each for each in mine.steps if each.step < step]
    if before:
        told["most_held_before"] = size(max(each.peak[0] for each in before))
    if mine.capacity:
        told["capacity"] = f"{size(mine.capacity)} ({mine.capacity_by})"
    return told


def _killed(run: CommRun, ranks: dict[int, MemoryRank]) -> list[Finding]:
    """A rank that the system killed while it held most of what there is: its out-of-memory killer, probably."""
    for rank, member in sorted(run.members.items()):
        mine = ranks.get(rank)
        if member.exit_code != _SIGKILL or mine is None or not mine.steps or not mine.capacity:
            continue
        last = mine.steps[-1]
        if max(last.rss, last.peak[0]) > 0.6 * mine.capacity:
            return [
                finding(
                    "memory.killed",
                    category="held",
                    step=last.step + 1,
                    ranks=[rank],
                    ranks_differ=len(run.members) > 1,
                    confidence="likely",
                    resident=size(last.rss),
                    **_around(mine, last.step),
                )
            ]
    return []
