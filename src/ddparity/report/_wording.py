"""The words of a report: glyphs, numbers, loci. Text and HTML say the same things with them."""

import math
from collections.abc import Mapping
from typing import Any

from ddparity._plain import plain
from ddparity.judge._verdict import LAYERS, Finding, LayerVerdict, Status, Verdict

GLYPHS = {Status.PASS: "✓", Status.DEVIATES: "✗", Status.INCONCLUSIVE: "?", Status.NOT_TESTED: "–"}  # noqa: RUF001
MAX_VALUE = 200
_MAX_ITEMS = 8
_SITES = {"parameter_after": "parameter after the step", "parameter_left": "parameter as the next step finds it"}


def word(status: Status) -> str:
    """Return a status as people read it: ``NOT TESTED``, not ``NOT_TESTED``."""
    return status.value.replace("_", " ")


def shown(value: Any) -> str:
    """Return a value of the evidence, the plan or the facts in a few words; long ones are cut."""
    text = plain(_shown(value))
    return text if len(text) <= MAX_VALUE else f"{text[: MAX_VALUE - 1]}…"


def _shown(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return number(value)
    if isinstance(value, Mapping):
        pairs = [f"{key}: {_shown(inner)}" for key, inner in list(value.items())[:_MAX_ITEMS]]
        return ", ".join(pairs) + _rest(len(value)) if pairs else "none"
    if isinstance(value, (list, tuple, set, frozenset)):
        items = [_shown(inner) for inner in list(value)[:_MAX_ITEMS]]
        return ", ".join(items) + _rest(len(value)) if items else "none"
    return str(value)


def _rest(count: int) -> str:
    return f" and {count - _MAX_ITEMS} more" if count > _MAX_ITEMS else ""


def number(value: float) -> str:
    """Return a number with four significant digits; whole numbers below a million without an exponent."""
    if not math.isfinite(value):
        return {True: "NaN"}.get(math.isnan(value), "Inf" if value > 0 else "-Inf")
    if value == int(value) and abs(value) < 1e6:
        return str(int(value))
    return f"{value:.4g}"


def plural(count: int, noun: str) -> str:
    """Return ``1 check`` or ``2 checks``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def layers(verdict: Verdict) -> list[tuple[str, LayerVerdict]]:
    """Return the layers in their usual order, unknown ones behind them."""
    order = {name: index for index, name in enumerate(LAYERS)}
    return sorted(verdict.layers.items(), key=lambda item: order.get(item[0], len(order)))


def locus(finding: Finding) -> str:
    """Return where a finding stands, in words."""
    return place(finding.step, finding.phase.value, finding.site, finding.name)


def place(step: int | None, phase: str, site: str, name: str) -> str:
    """Return where a finding stands, in words, from its parts as they stand in JSON."""
    site = _SITES.get(site, site.replace("_", " "))
    what = name.removeprefix(f"{phase}:") if site == phase else f"{site} of {name}"
    return plain(f"{'' if step is None else f'step {step}, '}{phase}: {what}")


def ranks(finding: Finding) -> str:
    """Return which ranks a finding concerns, or an empty text where it concerns none in particular."""
    parts = [] if finding.ranks is None else [shown(finding.ranks)]
    if finding.ranks_differ:
        parts.append("the ranks differ from each other")
    return "; ".join(parts)


def roots(verdict: Verdict, layer: str) -> list[tuple[int, Finding]]:
    """Return the findings of a layer that follow from no other, with their indices."""
    return [(i, f) for i, f in enumerate(verdict.findings) if f.layer == layer and f.follows is None]


def followers(verdict: Verdict, index: int) -> list[Finding]:
    """Return the findings, of any layer, that follow from the one at ``index``, directly or through others."""
    return [f for i, f in enumerate(verdict.findings) if i != index and _root(verdict, i) == index]


def _root(verdict: Verdict, index: int) -> int:
    seen = {index}
    while True:
        above = verdict.findings[index].follows
        if above is None or not 0 <= above < len(verdict.findings) or above in seen:
            return index
        seen.add(above)
        index = above
