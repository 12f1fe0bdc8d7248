"""``ddparity timeline``: the calls and steps of a trial as a Chrome trace."""

from pathlib import Path
from typing import Annotated

import typer

from ddparity._errors import UsageError
from ddparity.cli._options import StoreOption, trial_names
from ddparity.cli._output import emit, say


def timeline(
    trial: Annotated[str, typer.Argument(autocompletion=trial_names, metavar="TRIAL", help="Name or id of a trial.")],
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write it there. Default: standard output.")
    ] = None,
    store: StoreOption = None,
) -> None:
    """Write the calls and steps of every rank as Chrome trace JSON, which https://ui.perfetto.dev opens.

    Exit code: 0; 2 if the trial has no calls and no steps on record.
    """
    import msgspec

    from ddparity.report._timeline import timeline as events_of
    from ddparity.trace._rings import read_rings
    from ddparity.trials import Store

    folder = Store.resolve(store).find(trial)
    document = events_of(read_rings(folder))
    if not document["traceEvents"]:
        raise UsageError(f"The trial {trial!r} holds no ring: nothing of it was recorded, or by an older ddparity.")
    text = msgspec.json.encode(document).decode()
    if out is None:
        emit(text)
        return
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--out {str(out)!r} cannot be written ({error.strerror}). Name another file.") from error
    say(f"{len(document['traceEvents'])} events in {out}; open it in https://ui.perfetto.dev")
