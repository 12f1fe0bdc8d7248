"""Whether control and candidate ran the same code; if not, one of them is stale and has to be recorded again.

A piece of code is stale where both sides know it by the same name and hold another hash. A fault that a script takes
behind a flag is the same code on both sides; what only one side has is not held against it.
"""

from ddparity._errors import StaleControl
from ddparity.trace import Trial

from ._recording import Options, record_command

_MAX_NAMES = 8


def check_fresh(control: Trial, candidate: Trial, *, allow_stale: bool) -> list[str]:
    """Refuse a comparison over different versions of the same code.

    Returns:
        Notes for the verdict: what changed, where ``allow_stale`` let it pass, or why it could not be told.

    Raises:
        StaleControl: Code changed between the two and ``allow_stale`` is not set.
    """
    if not control.ranks or not candidate.ranks:
        return []
    versions = [side.ranks[0].facts.versions.get("python", "").rpartition(".")[0] for side in (control, candidate)]
    if versions[0] != versions[1]:
        return [f"whether the code is the same was not examined: it ran under Python {versions[0]} and {versions[1]}"]
    changed = changed_code(control, candidate)
    if not changed:
        return []
    listed = ", ".join(changed[:_MAX_NAMES])
    if len(changed) > _MAX_NAMES:
        listed += f" and {len(changed) - _MAX_NAMES} more"
    if allow_stale:
        return [f"--allow-stale: control and candidate ran different versions of {listed}"]
    raise StaleControl(_message(control, candidate, listed))


def changed_code(control: Trial, candidate: Trial) -> list[str]:
    """Return the names of the pieces of code, or configuration files, that both sides have and that differ."""
    ours, theirs = control.ranks[0].facts.fingerprints, candidate.ranks[0].facts.fingerprints
    apart = _other_scripts(control, candidate)
    return [
        name for name, digest in ours.items() if theirs.get(name, digest) != digest and name.partition("::")[0] != apart
    ]


def _other_scripts(control: Trial, candidate: Trial) -> str:
    """Return the name of two scripts that stand at different places: two programs, not two versions of one."""
    a, b = control.facts.script, candidate.facts.script
    return a.rpartition("/")[2] if a is not None and b is not None and a != b else ""


def _message(control: Trial, candidate: Trial, listed: str) -> str:
    ours, theirs = control.facts, candidate.facts
    if ours.started <= theirs.started:
        what = f"The control {ours.name!r} is stale: the candidate {theirs.name!r} ran newer code"
        bank = theirs.pinned is not None
        again = record_command(ours.name, ours.command, Options.of(ours, bank=bank), control=True)
    else:
        what = f"The candidate {theirs.name!r} is older than the control {ours.name!r} and ran other code"
        again = record_command(theirs.name, theirs.command, Options.of(theirs))
    return (
        f"{what}. Changed: {listed}. Build it again: {again} "
        f"&& ddparity compare {ours.name} {theirs.name}. With --allow-stale it is judged all the same."
    )
