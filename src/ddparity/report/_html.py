"""A verdict as one self-contained HTML page: no script, no network, light and dark."""

from collections.abc import Iterable, Sequence
from html import escape

from ddparity._plain import plain
from ddparity.judge import Pictures
from ddparity.judge._verdict import Finding, Verdict
from ddparity.report._heat import STYLE as HEAT_STYLE
from ddparity.report._heat import heat
from ddparity.report._wording import GLYPHS, followers, layers, locus, plural, ranks, roots, shown, word
from ddparity.report.figures import STYLE as FIGURE_STYLE
from ddparity.report.figures import calls_figure, errors_figure, memory_figure, samples_figure

_MAX_FINDINGS = 1000
_MAX_LOCI = 20
_FEW = 6
"""So many findings are shown without being asked for."""
LIGHT = """color-scheme: light dark; --page: #fff; --card: #f6f7f9; --text: #1b1f24; --soft: #57606a; --line: #d0d7de;
  --pass: #116329; --deviates: #b3121d; --inconclusive: #7d4e00; --not-tested: #57606a;"""
DARK = """--page: #0f1216; --card: #181c22; --text: #e6e9ee; --soft: #a3adb8; --line: #353c45; --pass: #57d075;
  --deviates: #ff8f87; --inconclusive: #e9b44c; --not-tested: #a3adb8;"""
RULES = """
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
code, .name { font-family: ui-monospace, monospace; overflow-wrap: anywhere; }
.cards { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fit, minmax(14rem, 1fr)); }
.card { background: var(--card); border: 1px solid var(--line); border-radius: .5rem; padding: 1rem; }
.card h3 { margin: 0; font-size: 1rem; } .card p { margin: .25rem 0 0; } .soft { color: var(--soft); }
.status { font-weight: 700; } .pass { color: var(--pass); } .deviates { color: var(--deviates); }
.inconclusive { color: var(--inconclusive); } .not-tested { color: var(--not-tested); }
.notice { border-left: .3rem solid var(--inconclusive); padding: .5rem 1rem; background: var(--card); }
.locus { margin-bottom: 1rem; border-left: .3rem solid var(--deviates); }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .25rem 1rem; margin: .5rem 0; }
dt { color: var(--soft); } dd { margin: 0; } summary { cursor: pointer; padding: .25rem 0; }
pre { overflow-x: auto; padding: .5rem .75rem; border: 1px solid var(--line); border-radius: .25rem;
  margin: .5rem 0 0; }
@media (max-width: 40rem) { dl { grid-template-columns: 1fr; } .wide table { min-width: 34rem; } }
.wide { overflow-x: auto; margin-bottom: 1rem; } caption { padding-bottom: .25rem; text-align: left; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .4rem .6rem; border-bottom: 1px solid var(--line); }
"""
STYLE = f"""
:root {{ {LIGHT} }}
@media (prefers-color-scheme: dark) {{ :root {{ {DARK} }} }}
* {{ box-sizing: border-box; }}
body {{ margin: 0 auto; max-width: 72rem; padding: 1.5rem; background: var(--page); color: var(--text);
  font: 1rem/1.5 system-ui, sans-serif; }}
{RULES}"""


def render_html(verdict: Verdict, pictures: Pictures | None = None) -> str:
    """Return a verdict as a whole HTML page; everything that comes from a trace is escaped.

    Args:
        verdict: The verdict.
        pictures: What was measured beside it for the pictures; without it there are none.
    """
    title = f"{_text(verdict.candidate)} against {_text(verdict.control)}"
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>ddparity: {title}</title>
<style>{report_style()}</style>
</head>
<body>
<main>
<h1>Does the candidate agree with the control?</h1>
{_named(verdict)}
{report_body(verdict, pictures)}
</main>
</body>
</html>
"""


def report_style() -> str:
    """Return the style sheet of all that stands in a report."""
    return f"{STYLE}{HEAT_STYLE}{FIGURE_STYLE}"


def report_body(verdict: Verdict, pictures: Pictures | None = None) -> str:
    """Return all of a report below its title, as a part of a page that has ``report_style``."""
    return f"""{report_layers(verdict)}
{drawings(verdict, pictures)}<h2>All findings</h2>
{_findings(verdict)}
{_throughput(verdict)}
<h2>What varied</h2>
{_varied(verdict)}
<h2>Merge plan</h2>
{_plan(verdict)}"""


def report_layers(verdict: Verdict) -> str:
    """Return the upper part of a report: what is missing, the verdict of each layer, and its first deviation."""
    return f"""{_partial(verdict)}{_notes(verdict)}
<h2>Verdicts</h2>
<div class="cards">{_cards(verdict)}</div>
<h2>First deviations</h2>
{_loci(verdict)}"""


def opening(verdict: Verdict) -> str:
    """Return what comes first: the two trials, what is missing, the four verdicts, and each layer's first deviation."""
    return f"""{_named(verdict)}
{report_layers(verdict)}"""


def _named(verdict: Verdict) -> str:
    return f"<p>control <code>{_text(verdict.control)}</code><br>candidate <code>{_text(verdict.candidate)}</code></p>"


def drawings(verdict: Verdict, pictures: Pictures | None) -> str:
    """Return the pictures, each part under a heading; an empty text where nothing was measured."""
    if pictures is None:
        return ""
    first = verdict.first("numerics")
    parts = (
        (
            "How far every tensor is from the control",
            errors_figure(pictures.errors, first) + heat(pictures.errors, first),
        ),
        ("Which rank took which sample", samples_figure(pictures.samples)),
        ("Memory", memory_figure(pictures.memory)),
        ("Calls between the ranks", calls_figure(pictures.calls)),
    )
    return "".join(f"<h2>{title}</h2>{drawn}" for title, drawn in parts if drawn)


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


def _loci(verdict: Verdict) -> str:
    """Return the first deviation of each layer, whole: where, how far, against what, why, and what to do next."""
    found = [(i, f) for name, _ in layers(verdict) for i, f in roots(verdict, name)]
    return (
        "".join(_locus(verdict, index, finding) for index, finding in found[:_MAX_LOCI]) or "<p>Nothing deviates.</p>"
    )


def _locus(verdict: Verdict, index: int, finding: Finding) -> str:
    rows = [("where", f'<span class="name">{_text(locus(finding))}</span>')]
    if who := ranks(finding):
        rows.append(("ranks", _text(who)))
    rows.append(("evidence", _evidence(finding)))
    if finding.floor is not None:
        rows.append(("held against", f"{shown(finding.floor.value)} ({_text(finding.floor.source)})"))
    cause = f"{_text(finding.cause.text)} <code>{_text(finding.cause.code)}</code>, {_text(finding.cause.confidence)}"
    rows.append(("likely cause", cause))
    advice, _, command = finding.next.partition(" Then: ")
    if advice:
        rows.append(("next", _text(advice)))
    listed = "".join(f"<dt>{name}</dt><dd>{value}</dd>" for name, value in rows)
    shell = f'<pre tabindex="0"><code>{_text(command)}</code></pre>' if command else ""
    behind = followers(verdict, index)
    more = f'<p class="soft">{plural(len(behind), "finding")} {"follow" if len(behind) > 1 else "follows"} from it.</p>'
    title = f"<h3>{_text(finding.layer)}: #{index}</h3>"
    return f'<section class="card locus">{title}<dl>{listed}</dl>{shell}{more if behind else ""}</section>'


def _evidence(finding: Finding) -> str:
    told = [f"{_text(key.replace('_', ' '))}: <b>{escape(shown(value))}</b>" for key, value in finding.evidence.items()]
    return "<br>".join(told) or "-"


def _findings(verdict: Verdict) -> str:
    if not verdict.findings:
        return "<p>None.</p>"
    heads = ("#", "layer", "where", "error", "cause", "follows from")
    rows = [_finding(index, finding) for index, finding in enumerate(verdict.findings[:_MAX_FINDINGS])]
    left = len(verdict.findings) - len(rows)
    more = f"<p>{left} more are in the JSON document.</p>" if left > 0 else ""
    table = _table("Every deviation in the order of computation", heads, rows) + more
    opened = " open" if len(verdict.findings) <= _FEW else ""
    return f"<details{opened}><summary>{plural(len(verdict.findings), 'finding')}</summary>{table}</details>"


def _finding(index: int, finding: Finding) -> Sequence[str]:
    where = f'<span class="name">{_text(locus(finding))}</span>'
    if who := ranks(finding):
        where += f"<br>ranks: {_text(who)}"
    error = finding.evidence.get("relative_error")
    floor = "" if finding.floor is None else f" (floor {shown(finding.floor.value)})"
    follows = "" if finding.follows is None else f"follows from #{finding.follows}"
    cause = f"<code>{_text(finding.cause.code)}</code>, {_text(finding.cause.confidence)}"
    return (
        str(index),
        _text(finding.layer),
        where,
        f"{escape(shown(error))}{floor}" if error is not None else "",
        cause,
        follows,
    )


def _throughput(verdict: Verdict) -> str:
    by_rank = {k: v for k, v in verdict.throughput.items() if isinstance(v, dict)}
    if not by_rank:
        return ""
    heads = list(dict.fromkeys(name for held in by_rank.values() for name in held))
    rows = [(_text(k), *(escape(shown(held.get(name, ""))) for name in heads)) for k, held in by_rank.items()]
    rest = [
        f"{_text(k.replace('_', ' '))}: {escape(shown(v))}" for k, v in verdict.throughput.items() if k not in by_rank
    ]
    told = f"<p>{'; '.join(rest)}</p>" if rest else ""
    return f"<h2>Throughput</h2>{_table('Median milliseconds of a step', ('rank', *heads), rows)}{told}"


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
