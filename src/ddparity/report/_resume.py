"""What became of a resumed run, as text."""

from collections.abc import Mapping, Sequence

from ddparity._plain import plain
from ddparity.judge import Resumption
from ddparity.report._wording import GLYPHS, locus, ranks, shown, word

_MAX_FOLLOWERS = 5


def render_resumption(answer: Resumption, trials: Mapping[str, str], notes: Sequence[str] = ()) -> str:
    """Return the answer as text, ending in a newline."""
    start = "no step that was recorded" if answer.resumed_from is None else f"step {answer.resumed_from}"
    lines = [
        f"interrupted after step {answer.at_step}, resumed from the parameters of {start}",
        *(f"{kind:<8}  {plain(trial)}" for kind, trial in trials.items()),
        "",
        f"{GLYPHS[answer.status]} {word(answer.status)}  {answer.checked} checks; {plain(answer.reason)}",
    ]
    if answer.findings:
        lines += ["", *_finding(answer)]
    lines += [f"note: {plain(note)}" for note in (*answer.notes, *notes)]
    return "\n".join(lines) + "\n"


def _finding(answer: Resumption) -> list[str]:
    first, rest = answer.findings[0], answer.findings[1:]
    lines = ["first deviation of the resumed run", f"  at        {locus(first)}"]
    if who := ranks(first):
        lines.append(f"  ranks     {who}")
    for number, (key, value) in enumerate(first.evidence.items()):
        lines.append(f"  {'evidence' if not number else '':<9} {plain(key).replace('_', ' ')}: {shown(value)}")
    lines.append(f"  cause     {plain(first.cause.text)} [{plain(first.cause.code)}, {plain(first.cause.confidence)}]")
    lines.append(f"  next      {plain(first.next)}")
    if rest:
        names = list(dict.fromkeys(plain(finding.name) for finding in rest))
        more = f" and {len(names) - _MAX_FOLLOWERS} more" if len(names) > _MAX_FOLLOWERS else ""
        lines.append(f"  {len(rest)} more differ in that step: {', '.join(names[:_MAX_FOLLOWERS])}{more}")
    return lines
