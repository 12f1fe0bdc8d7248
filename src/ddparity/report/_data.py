"""A trial's data as text: the audits, a table a rank, and which rank took which stretch of the dataset."""

from ddparity._plain import plain
from ddparity.judge import DataReport, PassRow
from ddparity.report._wording import GLYPHS, number, word

SHADES = " .:-=+*#"
_MAX_PASSES = 12
_MAX_RANKS = 64


def render_data(report: DataReport) -> str:
    """Return a report as text, ending in a newline."""
    blocks = [
        [plain(note) for note in report.notes],
        [f"trial  {plain(report.trial)}"],
        [_audit(a.status, a.name, a.text) for a in report.audits],
        [f"next   {plain(finding.cause.text)} {plain(finding.next)}" for finding in report.findings[:3]],
        [plain(text) for text in report.supply[:_MAX_PASSES]],
        *(_pass(one) for one in report.passes[:_MAX_PASSES]),
    ]
    if len(report.passes) > _MAX_PASSES:
        blocks.append([f"and {len(report.passes) - _MAX_PASSES} more passes (--json lists them)"])
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def _audit(status: object, name: str, text: str) -> str:
    from ddparity.judge import Status

    known = Status(str(status))
    return f"{GLYPHS[known]} {word(known):<12}  {plain(name):<10}  {plain(text)}"


def heading(one: PassRow) -> str:
    """Return in words which pass this is."""
    use = {True: "training", False: "evaluation", None: "entered no model"}[one.training]
    length = "" if one.length is None else f", {one.length} samples"
    return plain(f"{one.dataset} ({use}), pass {one.ordinal}, from step {one.step}{length}")


def _pass(one: PassRow) -> list[str]:
    lines = [heading(one), "  rank  batches   samples    unique   wait/batch  waiting  who took what"]
    for row in one.ranks[:_MAX_RANKS]:
        wait = "-" if row.wait_ms is None else f"{number(row.wait_ms)} ms"
        share = "-" if row.waiting is None else f"{row.waiting:.0%}"
        counts = f"  {row.rank:>4}  {row.batches:>7}  {row.samples:>8}  {row.unique:>8}  {wait:>11}  {share:>7}"
        lines.append(f"{counts}  {strip(row.bins)}".rstrip())
    if len(one.ranks) > _MAX_RANKS:
        lines.append(f"  and {len(one.ranks) - _MAX_RANKS} more ranks (--json lists them)")
    return lines


def strip(bins: list[float]) -> str:
    """Return a strip of the dataset, from its first sample to its last; the darker, the more a rank took of it."""
    top = len(SHADES) - 1
    shades = (SHADES[0 if share <= 0 else max(1, min(top, round(share * top)))] for share in bins)
    return f"|{''.join(shades)}|" if bins else ""
