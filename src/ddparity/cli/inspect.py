"""``ddparity inspect``: judge a bundle that somebody else made."""

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from ddparity._errors import UsageError, exit_code_of
from ddparity.cli._busy import Busy
from ddparity.cli._output import emit, emit_json, say


def inspect(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="A zip file that ddparity bundle wrote.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Also write the first comparison as an HTML page.")
    ] = None,
) -> None:
    """Judge the trials of a bundle: the same verdict as where they were recorded. Needs no torch.

    Exit code: that of the worst comparison in it, as for compare.
    """
    from ddparity.bundle import open_bundle
    from ddparity.judge import Status, compare_trials
    from ddparity.report import render_text

    with tempfile.TemporaryDirectory(prefix="ddparity-") as folder, Busy(f"judging {path.name}"):
        head = open_bundle(path, Path(folder))
        trials = Path(folder) / "trials"
        if not head.pairs:
            raise UsageError(f"{path} holds no candidate with its control: {', '.join(head.trials)}.")
        verdicts = [compare_trials(trials / a, trials / b, allow_stale=True) for a, b in head.pairs]
        page = "" if html is None else _page(*(trials / name for name in head.pairs[0]))
    if html is not None:
        html.write_text(page, encoding="utf-8")
        say(f"written: {html}")
    if as_json:
        emit_json(verdicts[0] if len(verdicts) == 1 else verdicts)
    else:
        emit("\n\n".join(render_text(verdict).rstrip("\n") for verdict in verdicts))
    worst = {verdict.exit_status() for verdict in verdicts}
    raise typer.Exit(exit_code_of(next(s for s in (Status.DEVIATES, Status.INCONCLUSIVE, Status.PASS) if s in worst)))


def _page(control: Path, candidate: Path) -> str:
    from ddparity.judge import compare_and_measure
    from ddparity.report import render_html

    measured = compare_and_measure(control, candidate, allow_stale=True)
    return render_html(measured.verdict, measured.pictures)
