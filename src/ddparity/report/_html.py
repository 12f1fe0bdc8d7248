"""A verdict as one self-contained HTML page: no script, no network, light and dark."""

from collections.abc import Iterable, Sequence
from html import escape

from ddparity._plain import plain
from ddparity.judge._verdict import Finding, Verdict
from ddparity.report._wording import GLYPHS, layers, plural, ranks, shown, word

_MAX_FINDINGS = 1000
STYLE = """
:root { color-scheme: light dark; --page: #fff; --card: #f6f7f9; --text: #1b1f24; --soft: #57606a; --line: #d0d7de;
  --pass: #116329; --deviates: #b3121d; --inconclusive: #7d4e00; --not-tested: #57606a; }
@media (prefers-color-scheme: dark) { :root { --page: #0f1216; --card: #181c22; --text: #e6e9ee; --soft: #a3adb8;
  --line: #353c45; --pass: #57d075; --deviates: #ff8f87; --inconclusive: #e9b44c; --not-tested: #a3adb8; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 72rem; padding: 1.5rem; background: var(--page); color: var(--text);
  font: 1rem/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
code, .name { font-family: ui-monospace, monospace; overflow-wrap: anywhere; }
.cards { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fit, minmax(14rem, 1fr)); }
.card { background: var(--card); border: 1px solid var(--line); border-radius: .5rem; padding: 1rem; }
.card h3 { margin: 0; font-size: 1rem; } .card p { margin: .25rem 0 0; } .soft { color: var(--soft); }
.status { font-weight: 700; } .pass { color: var(--pass); } .deviates { color: var(--deviates); }
.inconclusive { color: var(--inconclusive); } .not-tested { color: var(--not-tested); }
.notice { border-left: .3rem solid var(--inconclusive); padding: .5rem 1rem; background: var(--card); }
.wide { overflow-x: auto; } table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .4rem .6rem; border-bottom: 1px solid var(--line); }
"""


def render_html(verdict: Verdict) -> str:
    """Return a verdict as a whole HTML page; everything that comes from a trace is escaped."""
    title = f"{_text(verdict.candidate)} against {_text(verdict.control)}"
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>ddparity: {title}</title>
<style>{STYLE}</style>
</head>
<body>
<main>
<h1>Does the candidate agree with the control?</h1>
<p>control <code>{_text(verdict.control)}</code><br>candidate <code>{_text(verdict.candidate)}</code></p>
{_partial(verdict)}{_notes(verdict)}
<h2>Verdicts</h2>
<div class="cards">{_cards(verdict)}</div>
<h2>Findings</h2>
{_findings(verdict)}
<h2>What varied</h2>
{_varied(verdict)}
<h2>Merge plan</h2>
{_plan(verdict)}
</main>
</body>
</html>
"""


def _text(value: object) -> str:
    return escape(plain(str(value)))


def _partial(verdict: Verdict) -> str:
    if not verdict.partial:
        return ""
    reasons = verdict.partial_reasons or ["a part of the recording is missing"]
    return f'<div class="notice">{"".join(f"<p><b>PARTIAL:</b> {_text(reason)}</p>" for reason in reasons)}</div>'


def _notes(verdict: Verdict) -> str:
    return "".join(f'<div class="notice"><p>{_text(note)}</p></div>' for note in verdict.notes)


def _cards(verdict: Verdict) -> str:
    cards = []
    for name, layer in layers(verdict):
        kind = layer.status.value.lower().replace("_", "-")
        status = f'<p class="status {kind}">{GLYPHS[layer.status]} {word(layer.status)}</p>'
        detail = f'<p class="soft">{plural(layer.checked, "check")}</p><p>{_text(layer.reason)}</p>'
        cards.append(f'<section class="card"><h3>{_text(name)}</h3>{status}{detail}</section>')
    return "".join(cards)


def _findings(verdict: Verdict) -> str:
    if not verdict.findings:
        return "<p>None.</p>"
    heads = ("#", "layer", "where", "evidence", "held against", "likely cause", "next")
    rows = [_finding(index, finding) for index, finding in enumerate(verdict.findings[:_MAX_FINDINGS])]
    left = len(verdict.findings) - len(rows)
    more = f"<p>{left} more are in the JSON document.</p>" if left > 0 else ""
    return _table("Every deviation in the order of computation; the first of a layer is its locus", heads, rows) + more


def _finding(index: int, finding: Finding) -> Sequence[str]:
    step = "" if finding.step is None else f"step {finding.step}, "
    where = (
        f'{step}{_text(finding.phase.value)}: {_text(finding.site)}<br><span class="name">{_text(finding.name)}</span>'
    )
    if who := ranks(finding):
        where += f"<br>ranks: {_text(who)}"
    evidence = "<br>".join(f"{_text(key)}: {escape(shown(value))}" for key, value in finding.evidence.items())
    floor = "" if finding.floor is None else f"{shown(finding.floor.value)} ({_text(finding.floor.source)})"
    cause = (
        f"{_text(finding.cause.text)}<br><code>{_text(finding.cause.code)}</code>, {_text(finding.cause.confidence)}"
    )
    if finding.follows is not None:
        cause += f"<br>follows from #{finding.follows}"
    command = f"<code>{_text(finding.next)}</code>" if finding.next else ""
    return (str(index), _text(finding.layer), where, evidence, floor, cause, command)


def _varied(verdict: Verdict) -> str:
    if not verdict.varied:
        return "<p>Nothing that was recorded.</p>"
    rows = [(_text(v.variable), escape(shown(v.control)), escape(shown(v.candidate))) for v in verdict.varied]
    one = "" if verdict.variable is None else f"<p>One variable: {_text(verdict.variable)}.</p>"
    return _table("Recorded facts that differ", ("variable", "control", "candidate"), rows) + one + _confounded(verdict)


def _confounded(verdict: Verdict) -> str:
    if not verdict.confounded:
        return ""
    names = f" ({_text(', '.join(verdict.variables))})" if verdict.variables else ""
    notice = f"<p><b>CONFOUNDED:</b> more than one variable changed{names}. Change one at a time.</p>"
    commands = "".join(f"<p><code>{_text(command)}</code></p>" for command in verdict.next_trials)
    return f'<div class="notice">{notice}{commands}</div>'


def _plan(verdict: Verdict) -> str:
    if not verdict.merge_plan:
        return "<p>None.</p>"
    rows = [(_text(key), escape(shown(value))) for key, value in verdict.merge_plan.items()]
    return _table("How the ranks' recordings are put together", ("part", "plan"), rows)


def _table(caption: str, heads: Iterable[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f'<th scope="col">{escape(text)}</th>' for text in heads)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return (
        f'<div class="wide" tabindex="0"><table><caption class="soft">{escape(caption)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )
