"""``ddparity bundle``: pack trials into one file that may leave the machine."""

from pathlib import Path
from typing import Annotated

import typer

from ddparity.cli._busy import Busy
from ddparity.cli._options import StoreOption, trial_names
from ddparity.cli._output import emit, emit_json, say, table


def bundle(
    trials: Annotated[
        list[str],
        typer.Argument(autocompletion=trial_names, metavar="TRIAL...", help="Names or ids; their controls come along."),
    ],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="The zip file.")] = Path("case.zip"),
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List every entry and why it is safe; write nothing.")
    ] = False,
    store: StoreOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="With --dry-run: the list as one JSON document.")] = False,
) -> None:
    """Pack digests, facts, errors and calls of trials into one zip file, and nothing of their data.

    No sample, target, banked batch or output is in it. Identities and hashes are keyed and sketches turned with secrets
    that are thrown away; names of people, hosts and folders become placeholders; secrets in commands are taken out.
    Somebody else judges it with: ddparity inspect FILE
    """
    from ddparity.bundle import plan_bundle, write_bundle
    from ddparity.trials import Store

    found = Store.resolve(store)
    with Busy("choosing what may leave the machine"):
        entries = plan_bundle([found.find(name) for name in trials])
    if dry_run and as_json:
        from ddparity.cli._documents import Entries, Entry

        rows = [Entry(name=each.name, bytes=len(each.content), why=each.why) for each in entries]
        emit_json(Entries(entries=rows))
        return
    if dry_run:
        emit(table(("ENTRY", "BYTES", "WHY IT IS SAFE"), [[e.name, str(len(e.content)), e.why] for e in entries]))
        return
    with Busy(f"writing {output.name}"):
        size = write_bundle(entries, output)
    say(f"{output}: {len(entries)} entries, {size / 1e6:.1f} MB. What is in it, and why: --dry-run")
    say(f"next: ddparity inspect {output}")
