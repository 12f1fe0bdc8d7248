"""The page ``docs/reference/json.md``, made of the types that ``--json`` prints and of their docstrings.

``python -m ddparity.cli._json_page FILE`` writes it.
"""

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from enum import Enum
from pathlib import Path

from ddparity.checkpoint import _seal, _verify
from ddparity.cli import _documents, _health
from ddparity.judge import _cause, _data_report, _next_trials, _resume, _verdict
from ddparity.memory import _fit
from ddparity.preflight import _rows
from ddparity.trace import _schema
from ddparity.trials import _ladders, _ledger, _scoring

_DOCUMENTS: dict[str, list[type]] = {
    "compare, inspect": [
        _verdict.Verdict,
        _verdict.LayerVerdict,
        _verdict.Status,
        _verdict.Finding,
        _verdict.Phase,
        _verdict.Floor,
        _verdict.Cause,
        _verdict.Varied,
    ],
    "data": [_data_report.DataReport, _data_report.AuditRow, _data_report.PassRow, _data_report.RankRow],
    "hang": [_documents.HangReport, _documents.ProcessNow, _documents.RankThen],
    "ladder, ladders": [_documents.LadderList, _ladders.LadderResult, _ladders.RungResult],
    "preflight": [_rows.Review, _rows.Row],
    "memory": [_fit.Forecast, _fit.Point],
    "recover": [_resume.Resumption],
    "plan": [_next_trials.TrialPlan, _next_trials.VariablePlan, _next_trials.PlannedTrial],
    "trials": [
        _documents.TrialList,
        _ledger.TrialRow,
        _documents.TrialShown,
        _ledger.Comparison,
        _schema.TrialFacts,
        _schema.TrialStatus,
        _schema.GitFacts,
        _schema.ControlProof,
        _schema.FloorTrials,
        _schema.RankFacts,
        _schema.RankStatus,
    ],
    "checkpoint": [_seal.Seal, _verify.Report, _verify.Condition, _verify.Fault],
    "explain": [_documents.Causes, _cause.KnownCause],
    "bundle --dry-run": [_documents.Entries, _documents.Entry],
    "doctor": [_documents.Doctor, _health.Check, _health.Grade],
    "config": [_documents.Settings, _documents.Setting],
    "zoo run": [_scoring.ZooScore, _scoring.Score],
}
"""Commands -> the types in what they print, the whole document first."""

_ABOUT = {
    "compare, inspect": "`Verdict`. `inspect` prints a list of them where a bundle holds several candidates.",
    "data": "`DataReport`.",
    "hang": "`HangReport`.",
    "ladder, ladders": "`LadderResult`; progress goes to standard error. `ladders` without a name: `LadderList`.",
    "preflight": "`Review`; progress goes to standard error.",
    "memory": '`Forecast`; with `--seq`, `{"lengths": {LENGTH: Forecast}}`. Sizes are bytes.',
    "recover": "`Resumption`, with `trials` (ids of `parted`, `resumed`, `whole`) and `restart` (advice).",
    "plan": "`TrialPlan`.",
    "trials": "`trials list`: `TrialList`. `trials show`: `TrialShown`.",
    "checkpoint": "`checkpoint seal`: `Seal`, as the file `ddparity-seal.json` has it. `checkpoint verify`: `Report`.",
    "explain": "`Causes`.",
    "bundle --dry-run": "`Entries`.",
    "doctor": "`Doctor`.",
    "config": "`Settings`.",
    "zoo run": "`ZooScore`.",
}

_HEAD = """# JSON documents

Made from the types themselves by `make cli-pages`. Every command that reads prints one document to standard output with
`--json`, and nothing else there; remarks go to standard error, and the [exit code](exit-codes.md) is that of the same
command without it. `schema` counts up when a document changes in a way that breaks readers; new fields may come at any
time. Numbers that are not finite are `null`.

"""

_TAIL = """## Others

| command | document |
| --- | --- |
| `timeline` | Chrome trace JSON, without `--json` |
| `status`, `jobs`, `submit`, `cancel` | the bodies of the [gateway](../gateway.md), whose schema is `GET /openapi.json` |
"""  # noqa: E501


def json_page() -> str:
    """Return the page, in Markdown: a section for each command that prints a document."""
    sections = (
        "\n\n".join([f"## {commands}", _ABOUT[commands], *map(_section, types)])
        for commands, types in _DOCUMENTS.items()
    )
    return _HEAD + "\n\n".join(sections) + "\n\n" + _TAIL


def _section(kind: type) -> str:
    """Return the section of one type: what it is, and a table of its fields or the list of its values."""
    text, attributes = _docstring(kind)
    if issubclass(kind, Enum):
        values = ", ".join(f"`{member.value}`" for member in kind)
        return f"### {kind.__name__}\n\n{text} One of {values}."
    rows = "\n".join(f"| `{name}` | `{of}` | {said} |" for name, of, said in _fields(kind, attributes))
    return f"### {kind.__name__}\n\n{text}\n\n| field | type | meaning |\n| --- | --- | --- |\n{rows}"


def _fields(kind: type, attributes: dict[str, str]) -> Iterator[tuple[str, str, str]]:
    """Yield the name of each field, its annotation, and what the docstrings say of it."""
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(body, ast.ClassDef)
    for node, after in zip(body.body, [*body.body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            name = node.target.id
            yield name, ast.unparse(node.annotation).replace("|", "\\|"), attributes.get(name, _said(after))


def _said(node: ast.stmt | None) -> str:
    """Return the docstring of a field: the string that stands behind it."""
    match node:
        case ast.Expr(value=ast.Constant(value=str(text))):
            return _plain(text)
        case _:
            return ""


def _docstring(kind: type) -> tuple[str, dict[str, str]]:
    """Return what a class says of itself, and of its attributes."""
    text, _, listed = (inspect.getdoc(kind) or "").partition("\n\nAttributes:\n")
    found = re.findall(r"^ {4}(\w[\w, ]*): (.*(?:\n {8}.*)*)", listed, re.MULTILINE)
    return _plain(text), {name: _plain(said) for names, said in found for name in names.split(", ")}


def _plain(text: str) -> str:
    return " ".join(text.split()).replace("``", "`").replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json_page(), encoding="utf-8")
