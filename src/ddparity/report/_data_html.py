"""A trial's data as one self-contained HTML page: no script, no network, light and dark."""

from html import escape

from ddparity._plain import plain
from ddparity.judge import DataReport, PassRow, RankRow, SampleRow, SamplesPicture, SampleStrip
from ddparity.judge._bounded import MAX_RANKS
from ddparity.report._data import heading
from ddparity.report._html import STYLE
from ddparity.report._wording import GLYPHS, number, word
from ddparity.report.figures import STYLE as FIGURE_STYLE
from ddparity.report.figures import samples_figure


def render_data_html(report: DataReport) -> str:
    """Return a report as a whole HTML page; everything that comes from a trace is escaped."""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>ddparity: the data of {_text(report.trial)}</title>
<style>{STYLE}{FIGURE_STYLE}</style>
</head>
<body>
<main>
<h1>Which rank got which sample?</h1>
<p>trial <code>{_text(report.trial)}</code></p>
{"".join(f'<div class="notice"><p>{_text(note)}</p></div>' for note in report.notes)}
<h2>Audits</h2>
<div class="wide"><table><thead><tr><th>verdict</th><th>audit</th><th>answer</th></tr></thead>
<tbody>{"".join(_audit(report))}</tbody></table></div>
{"".join(f"<p>{_text(f.cause.text)} {_text(f.next)}</p>" for f in report.findings)}
{"".join(f"<p>{_text(text)}</p>" for text in report.supply)}
{"".join(_pass(one) for one in report.passes)}
</main>
</body>
</html>
"""


def _text(value: object) -> str:
    return escape(plain(str(value)))


def _audit(report: DataReport) -> list[str]:
    rows = []
    for audit in report.audits:
        kind = audit.status.value.lower().replace("_", "-")
        status = f'<td class="status {kind}">{GLYPHS[audit.status]} {word(audit.status)}</td>'
        rows.append(f"<tr>{status}<td>{_text(audit.name)}</td><td>{_text(audit.text)}</td></tr>")
    return rows


def _pass(one: PassRow) -> str:
    heads = "".join(f"<th>{name}</th>" for name in ("rank", "batches", "samples", "unique", "wait"))
    rows = "".join(_row(row) for row in one.ranks)
    return (
        f"<h2>{_text(heading(one))}</h2><div class='wide'><table><thead><tr>{heads}</tr></thead>"
        f"<tbody>{rows}</tbody></table></div>{_strip(one)}"
    )


def _row(row: RankRow) -> str:
    wait = "-" if row.wait_ms is None else f"{number(row.wait_ms)} ms a batch, {row.waiting or 0.0:.0%} of the time"
    cells = (row.rank, row.batches, row.samples, row.unique, wait)
    return f"<tr>{''.join(f'<td>{_text(cell)}</td>' for cell in cells)}</tr>"


def _strip(one: PassRow) -> str:
    """Draw the dataset from its first sample to its last, a row a rank."""
    if not one.length or not one.repeated:
        return "<p>Its samples have no index: which of them a rank took cannot be drawn.</p>"
    rows = [SampleRow(rank=row.rank, shares=row.bins, samples=row.samples) for row in one.ranks if row.bins]
    strip = SampleStrip(
        dataset=one.dataset,
        ordinal=one.ordinal,
        training=one.training,
        whole=one.whole,
        length=one.length,
        rows=rows[:MAX_RANKS],
        num_ranks=len(one.ranks),
        repeated=one.repeated,
        missing=one.missing,
    )
    return samples_figure(SamplesPicture(strips=[strip]))
