"""How a zoo row is scored: pure functions of the manifest's row and the two verdicts.

The judge never sees a manifest; only this module does, after the verdicts are made.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from ddparity.judge import Finding, Status, Verdict

NOT_PARAMETERS = frozenset({"loss", "lr", "grad_norm", "clip_coefficient", "loss_scale", "sample_ids", "rng"})
NOT_PARAMETER_PREFIXES = ("metric:", "collective:", "memory:", "rank:")
NOT_PARAMETER_SITES = frozenset({"input", "activation", "activation_gradient", "buffer"})
"""A finding at one of these sites bears the name of a module, a buffer or an input."""
UNSCORED_PHASES = frozenset({"eval", "memory"})


class Locus(msgspec.Struct, kw_only=True):
    """Where the manifest says that a row's fault shows first."""

    step: int | None = None
    phases: list[str] = []
    names: list[str] = []
    ranks_differ: bool = False


class Row(msgspec.Struct, kw_only=True):
    """One line of ``manifest.jsonl``, as far as running and scoring need it."""

    name: str
    file: str
    layer: str
    parallelism: str = ""
    nproc: int = 2
    silent: bool = True
    benign: bool = False
    deterministic: bool = True
    single_device_affected: bool = False
    locus: Locus = msgspec.field(default_factory=Locus)


class Score(msgspec.Struct, kw_only=True):
    """What became of one row; ``located`` is None for a row without a fault."""

    name: str
    clean_pass: bool
    detected: bool
    located: bool | None
    seconds: float
    first_finding: dict[str, Any] | None


class Outcome(msgspec.Struct, kw_only=True):
    """A row, the verdicts of its two distributed runs (None: could not be judged), and its score."""

    row: Row
    clean: Verdict | None
    faulty: Verdict | None
    score: Score
    errors: list[str] = []


def score(row: Row, clean: Verdict | None, faulty: Verdict | None, seconds: float) -> Score:
    """Score a row; a run that could not be judged neither passes nor detects anything."""
    first = _shown(row, faulty)
    return Score(
        name=row.name,
        clean_pass=clean is not None and passes(clean),
        detected=faulty is not None and deviates(faulty) != row.benign,
        located=None if row.benign else faulty is not None and locating(row.locus, faulty) is not None,
        seconds=round(seconds, 2),
        first_finding=None if first is None else msgspec.to_builtins(first),
    )


def passes(verdict: Verdict) -> bool:
    """Tell whether at least one layer says PASS and none DEVIATES."""
    return not deviates(verdict) and any(layer.status is Status.PASS for layer in verdict.layers.values())


def deviates(verdict: Verdict) -> bool:
    """Tell whether some layer says DEVIATES."""
    return any(layer.status is Status.DEVIATES for layer in verdict.layers.values())


def locating(locus: Locus, verdict: Verdict) -> Finding | None:
    """Return the first finding of a deviating layer that stands where the manifest says, or None."""
    return next((finding for finding in first_findings(verdict) if matches(locus, finding)), None)


def first_findings(verdict: Verdict) -> list[Finding]:
    """Return, for each deviating layer, its first finding that follows from no other."""
    firsts = (verdict.first(name) for name, layer in verdict.layers.items() if layer.status is Status.DEVIATES)
    return [finding for finding in firsts if finding is not None]


def matches(locus: Locus, finding: Finding) -> bool:
    """Tell whether a finding has the manifest's step (where given), one of its phases, and its name."""
    return (
        (locus.step is None or finding.step == locus.step)
        and finding.phase in locus.phases
        and name_matches(locus, finding)
    )


def name_matches(locus: Locus, finding: Finding) -> bool:
    """Tell whether a finding's name is one of the manifest's; prose and unscored phases match any name."""
    names = [name for name in locus.names if " " not in name]
    if not names or UNSCORED_PHASES.intersection(locus.phases):
        return True
    return any(_is_named(finding, name) for name in names)


def is_parameter(finding: Finding) -> bool:
    """Tell whether a finding's name is that of a parameter, as far as name and site say."""
    return (
        finding.name not in NOT_PARAMETERS
        and not finding.name.startswith(NOT_PARAMETER_PREFIXES)
        and finding.site not in NOT_PARAMETER_SITES
    )


def _is_named(finding: Finding, wanted: str) -> bool:
    """Tell whether a name is equal to, ends in or stands below ``wanted``, where ``*`` is every parameter."""
    if wanted == "*":
        return is_parameter(finding)
    if wanted.endswith(".*"):
        return is_parameter(finding) and _holds(finding.name.split("."), wanted.split(".")[:-1])
    return finding.name == wanted or finding.name.endswith("." + wanted) or finding.name.startswith(wanted + ".")


def _holds(parts: Sequence[str], inner: Sequence[str]) -> bool:
    """Tell whether ``inner`` stands in ``parts`` with at least one more part behind it."""
    return any(list(parts[i : i + len(inner)]) == list(inner) for i in range(len(parts) - len(inner)))


def _shown(row: Row, verdict: Verdict | None) -> Finding | None:
    """Return the finding that located the fault, else the first one there is."""
    if verdict is None:
        return None
    return locating(row.locus, verdict) or next(iter(first_findings(verdict)), None) or verdict.first()


class ZooScore(msgspec.Struct, kw_only=True):
    """The document of ``zoo run --json``.

    Attributes:
        detected: Of the rows with a fault, those in which it was seen, as ``hits/rows``.
        located: Of these, those whose first finding names the right place.
        false_alarms: Of the runs without a fault (every clean run, and the ``--bug`` run of a look-alike), those in
            which some layer deviates.
    """

    rows: list[Score]
    detected: str
    located: str
    false_alarms: str


def summarise(outcomes: Iterable[Outcome]) -> ZooScore:
    """Return the document of ``zoo run --json``."""
    outcomes = list(outcomes)
    faulty = [outcome.score for outcome in outcomes if not outcome.row.benign]
    healthy = [outcome.clean for outcome in outcomes]
    healthy += [outcome.faulty for outcome in outcomes if outcome.row.benign]
    return ZooScore(
        rows=[outcome.score for outcome in outcomes],
        detected=_ratio(score.detected for score in faulty),
        located=_ratio(bool(score.located) for score in faulty),
        false_alarms=_ratio(verdict is not None and deviates(verdict) for verdict in healthy),
    )


def all_well(outcomes: Iterable[Outcome]) -> bool:
    """Tell whether every fault was detected, no healthy run raised an alarm, and every clean run passed."""
    return all(outcome.score.detected and outcome.score.clean_pass for outcome in outcomes)


def _ratio(hits: Iterable[bool]) -> str:
    seen = list(hits)
    return f"{sum(seen)}/{len(seen)}"
