"""What differs between two trials besides their results: the variables, each with the facts that follow from it.

A variable is what somebody chose: an argument, the number of processes, the code, a version. Facts that a choice brings
along belong to its variable: the world size brings launcher, backend and local batch, an argument may set the seed.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ddparity.trace import Trial

from ._facts import HYPERPARAMETER, flat_facts
from ._stale import changed_code
from ._verdict import Varied

WORLD, LAUNCHER, CODE, DEVICE, MICRO = "world_size", "launcher", "code", "device", "micro_batches"
CHANGED_CODE = "changed_code"
_CODE_FACTS = frozenset({"target", "script", "git_commit", CHANGED_CODE})
_WITH_WORLD = re.compile(
    r"launcher|backend|master|num_threads|batch_shape|env:(OMP_NUM_THREADS|WORLD_SIZE|NODE_RANK|MASTER_|LOCAL_|RANK|GROUP_"
    r"|ROLE_|NCCL_|GLOO_|HCCL_|SLURM_|TORCHELASTIC_|CUDA_VISIBLE_|HIP_VISIBLE_|ROCR_VISIBLE_|ASCEND_RT_)"
)
_WITH_DEVICE = re.compile(r"device|backend|version:(cuda|platform)|setting:cudnn|env:(CUDA|HIP|ROCR|ASCEND|NVIDIA)_")
_EFFECTS = re.compile(rf"seed\Z|setting:|{HYPERPARAMETER}|batch_shape|backend\Z|master\Z|num_threads\Z")
"""Facts that nobody chooses by themselves: some choice, known or not, set them."""
_SHAPE = "batch_shape"
_ARGUMENT = re.compile(r"-|argument |.*=\Z")
_BATCH = re.compile(r"batch|\A--?bsz?\Z|samples", re.IGNORECASE)
_PROCESSES = re.compile(r"devices|gpus|world|nproc|processes|ranks", re.IGNORECASE)
_ACCUMULATION = re.compile(r"accum|micro|chunks", re.IGNORECASE)
_IGNORED = frozenset({"version:ddparity"})
_TURN = {CODE: 0, MICRO: 1, LAUNCHER: 8, WORLD: 9}


@dataclass
class Variable:
    """One thing that was changed: its name, its facts, and the facts that follow from it."""

    name: str
    facts: list[str] = field(default_factory=list)


def varied_facts(control: Trial, candidate: Trial) -> tuple[list[Varied], list[Variable]]:
    """List the facts that differ, and the variables that they belong to."""
    ours, theirs = flat_facts(control), flat_facts(candidate)
    same_code = None
    if _fingerprinted(control) and _fingerprinted(candidate):
        changed = changed_code(control, candidate)
        same_code = not changed
        theirs |= {CHANGED_CODE: changed} if changed else {}
    found = variables(ours, theirs, same_code=same_code)
    belongs = {fact: variable.name for variable in found for fact in variable.facts}
    return [
        Varied(variable=key, control=ours.get(key), candidate=theirs.get(key), part_of=belongs.get(key, ""))
        for key in _changed(ours, theirs)
    ], found


def varied_between(control: Trial, candidate: Trial) -> tuple[list[Varied], list[str]]:
    """List the facts that differ, and the names of the variables that they belong to."""
    varied, found = varied_facts(control, candidate)
    return varied, [variable.name for variable in found]


def _fingerprinted(trial: Trial) -> bool:
    return bool(trial.ranks and trial.ranks[0].facts.fingerprints)


def _changed(ours: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    """Return the facts that differ; the shape of a batch that a run never came to is no difference."""
    return [
        key
        for key in dict.fromkeys([*ours, *theirs])
        if ours.get(key) != theirs.get(key) and not (key.startswith(_SHAPE) and (key not in ours or key not in theirs))
    ]


def variables(ours: dict[str, Any], theirs: dict[str, Any], *, same_code: bool | None = None) -> list[Variable]:
    """Group the facts that differ into variables, in the order in which they are best changed one after the other.

    Args:
        ours: The control's facts, flattened.
        theirs: The candidate's.
        same_code: Whether fingerprints say that the code is the same; None if there are none.
    """
    left = dict.fromkeys(key for key in _changed(ours, theirs) if key not in _IGNORED)
    found: list[Variable] = []
    _take(found, left, CODE, _code(ours, theirs, left, same_code))
    for name in (WORLD, LAUNCHER):
        if name in left:
            own = [key for key in left if key == name or _WITH_WORLD.match(key)]
            _take(found, left, name, own + (_scaled(ours, theirs, left) if name == WORLD else []))
    if DEVICE in left:
        _take(found, left, DEVICE, [key for key in left if _WITH_DEVICE.match(key)])
    _take(found, left, MICRO, _micro_batches(ours, theirs, left))
    for key in [key for key in left if not _EFFECTS.match(key)]:
        _take(found, left, key, [key])
    _place_effects(found, left)
    return sorted(found, key=lambda variable: _TURN.get(variable.name, 2 if _is_on_command_line(variable.name) else 7))


def _take(found: list[Variable], left: dict[str, None], name: str, facts: Iterable[str]) -> None:
    mine = [fact for fact in dict.fromkeys(facts) if fact in left]
    if mine:
        found.append(Variable(name, mine))
    for fact in mine:
        del left[fact]


def _code(ours: dict[str, Any], theirs: dict[str, Any], left: dict[str, None], same_code: bool | None) -> list[str]:
    """Return the facts of changed code: what trains, its hash, and the commit unless fingerprints say otherwise."""
    same_script = "script" not in left and ours.get("script") is not None
    for fact in ("target",) * same_script + ("git_commit", "script") * bool(same_code):
        left.pop(fact, None)  # the same script under another path, the same code at another commit
    return [fact for fact in left if fact in _CODE_FACTS]


def _scaled(ours: dict[str, Any], theirs: dict[str, Any], left: Iterable[str]) -> list[str]:
    """Return the arguments that the world size brings along: batch sizes that it divides, and its own number."""
    old, new = ours[WORLD], theirs[WORLD]
    found: list[str] = []
    for chosen in _choices(left):
        flags = {key: pair for key in chosen if (pair := _numbers(ours, theirs, key))}
        for key in chosen:  # left out where it is one
            if key not in flags and _PROCESSES.search(key) and (pair := _numbers(ours, theirs, key, absent=1)):
                flags[key] = pair
        found += [key for key, pair in flags.items() if pair == (old, new)]
        divided = [key for key, (a, b) in flags.items() if a * max(old, 1) == b * max(new, 1)]
        found += divided if len(divided) == 1 else [key for key in divided if _BATCH.search(key)]
    return found


def _choices(left: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return what somebody chose, each place by itself: arguments of the command, and what a framework was given."""
    facts = list(left)
    return [key for key in facts if is_argument(key)], [key for key in facts if key.startswith(HYPERPARAMETER)]


def _micro_batches(ours: dict[str, Any], theirs: dict[str, Any], left: Iterable[str]) -> list[str]:
    """Return a batch size and a number of micro-batches that changed so that their product did not."""
    found: list[str] = []
    for chosen in _choices(left):
        flags = {key: pair for key in chosen if (pair := _numbers(ours, theirs, key, absent=1))}
        counts = [key for key in flags if _ACCUMULATION.search(key) and not key.endswith("size")]
        sizes = [key for key in flags if key not in counts and _BATCH.search(key)]
        found += next(
            (
                [count, size]
                for count in counts
                for size in sizes
                if flags[count][0] * flags[size][0] == flags[count][1] * flags[size][1]
            ),
            counts[:1],
        )
    return found


def _numbers(
    ours: dict[str, Any], theirs: dict[str, Any], key: str, absent: int | None = None
) -> tuple[int, int] | None:
    texts = [side.get(key, absent) for side in (ours, theirs)]
    numbers = [int(text) for text in texts if str(text).isdigit()]
    return (numbers[0], numbers[1]) if len(numbers) == 2 else None


def is_argument(fact: str) -> bool:
    """Whether a fact is an argument of the training command."""
    return bool(_ARGUMENT.match(fact))


def _is_on_command_line(name: str) -> bool:
    return is_argument(name) or name.startswith("env:")


def _place_effects(found: list[Variable], left: dict[str, None]) -> None:
    """Put settings that nobody chose directly with the choice that may have set them; the rest are variables."""
    makers = [v for v in found if v.name in (CODE, MICRO) or _is_on_command_line(v.name)]
    for effect in list(left):
        word = effect.rpartition(":")[2].split("_")[-1]
        near = [v for v in makers if word in v.name] or makers[:1]
        if near:
            near[0].facts.append(effect)
        else:
            found.append(Variable(effect, [effect]))
