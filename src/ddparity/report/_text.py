"""A verdict as text: the page that ``ddparity compare`` prints."""

from collections.abc import Iterator

from ddparity._plain import plain
from ddparity.judge._verdict import Finding, Status, Verdict
from ddparity.report._wording import GLYPHS, followers, layers, locus, plural, ranks, roots, shown, word

_MAX_NAMES = 5
_MAX_PLAN = 12
_MAX_VARIED = 20


def render_text(verdict: Verdict) -> str:
    """Return a verdict as text, without colours, ending in a newline.

    What is missing comes first, then one line a layer, what varied, the merge plan, and each layer's first finding.
    """
    blocks = [
        _partial(verdict),
        _heading(verdict),
        _notes(verdict),
        _layer_lines(verdict),
        _varied(verdict),
        _plan(verdict),
        _throughput(verdict),
    ]
    blocks += [_layer_findings(verdict, name) for name, _ in layers(verdict)]
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def _partial(verdict: Verdict) -> list[str]:
    if not verdict.partial:
        return []
    reasons = [plain(reason) for reason in verdict.partial_reasons] or ["a part of the recording is missing"]
    return [f"PARTIAL: {reason}" for reason in reasons]


def _heading(verdict: Verdict) -> list[str]:
    return [f"control    {plain(verdict.control)}", f"candidate  {plain(verdict.candidate)}"]


def _notes(verdict: Verdict) -> list[str]:
    return [f"note: {plain(note)}" for note in verdict.notes]


def _layer_lines(verdict: Verdict) -> list[str]:
    width = max((len(name) for name in verdict.layers), default=0)
    lines = []
    for name, layer in layers(verdict):
        checked = "" if layer.status is Status.NOT_TESTED else plural(layer.checked, "check")
        reason = "; ".join(part for part in (checked, plain(layer.reason)) if part)
        lines.append(f"{GLYPHS[layer.status]} {word(layer.status):<12}  {plain(name):<{width}}  {reason}".rstrip())
    return lines


def _varied(verdict: Verdict) -> list[str]:
    if not verdict.varied:
        return ["varied: nothing that was recorded"]
    rows = [f"  {plain(v.variable)}: {shown(v.control)} -> {shown(v.candidate)}" for v in verdict.varied[:_MAX_VARIED]]
    if len(verdict.varied) > _MAX_VARIED:
        rows.append(f"  and {len(verdict.varied) - _MAX_VARIED} more (--json lists them)")
    if verdict.confounded:
        rows += _confounded(verdict)
    elif verdict.variable is not None:
        rows.append(f"  one variable: {plain(verdict.variable)}")
    return ["varied", *rows]


def _confounded(verdict: Verdict) -> Iterator[str]:
    names = f" ({', '.join(plain(name) for name in verdict.variables)})" if verdict.variables else ""
    yield (
        f"  CONFOUNDED: more than one variable changed{names}, so a deviation cannot be put down to one of them. "
        "Change one at a time."
    )
    yield from (f"    {plain(command)}" for command in verdict.next_trials)


def _plan(verdict: Verdict) -> list[str]:
    rows = [f"  {plain(key).replace('_', ' ')}: {shown(value)}" for key, value in verdict.merge_plan.items()]
    if len(rows) > _MAX_PLAN:
        rows = [*rows[:_MAX_PLAN], f"  and {len(rows) - _MAX_PLAN} more (--json lists them)"]
    return ["merge plan", *rows] if rows else []


def _throughput(verdict: Verdict) -> list[str]:
    """Say where the time of a step goes: a line a rank, the parts in milliseconds."""
    rows = []
    for key, value in verdict.throughput.items():
        if isinstance(value, dict):
            parts = [f"{plain(str(part)).replace('_', ' ')} {shown(number)}" for part, number in value.items()]
            rows.append(f"  {plain(key)}: {', '.join(parts)}")
        else:
            rows.append(f"  {plain(key).replace('_', ' ')}: {shown(value)}")
    if len(rows) > _MAX_PLAN:
        rows = [*rows[:_MAX_PLAN], f"  and {len(rows) - _MAX_PLAN} more (--json lists them)"]
    return ["throughput (median ms a step)", *rows] if rows else []


def _layer_findings(verdict: Verdict, layer: str) -> list[str]:
    found = roots(verdict, layer)
    if not found:
        return []
    index, first = found[0]
    lines = [f"{plain(layer)}: first deviation", *_finding(first)]
    lines += _names("follow", "from it", followers(verdict, index))
    lines += _names("follow", "from no other", [finding for _, finding in found[1:]], more=True)
    return lines


def _finding(finding: Finding) -> Iterator[str]:
    yield f"  at        {locus(finding)}"
    if who := ranks(finding):
        yield f"  ranks     {who}"
    for label, (key, value) in zip(_labels("evidence"), finding.evidence.items(), strict=False):
        yield f"  {label:<9} {plain(key).replace('_', ' ')}: {shown(value)}"
    if finding.floor is not None:
        yield f"  floor     {shown(finding.floor.value)} ({plain(finding.floor.source)})"
    cause = finding.cause
    yield f"  cause     {plain(cause.text)} [{plain(cause.code)}, {plain(cause.confidence)}]"
    if finding.next:
        yield f"  next      {plain(finding.next)}"


def _labels(first: str) -> Iterator[str]:
    yield first
    while True:
        yield ""


def _names(verb: str, what: str, findings: list[Finding], *, more: bool = False) -> list[str]:
    if not findings:
        return []
    names = list(dict.fromkeys(plain(finding.name) for finding in findings))
    rest = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    count = f"{len(findings)} {'more ' if more else ''}finding{'' if len(findings) == 1 else 's'}"
    verb = f"{verb}s" if len(findings) == 1 else verb
    return [f"  {count} {verb} {what}: {', '.join(names[:_MAX_NAMES])}{rest}"]
