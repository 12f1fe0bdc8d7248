"""``ddparity jobs``: the jobs of a gateway."""

from itertools import islice
from typing import Annotated, Any

import typer

from ddparity._plain import plain
from ddparity.cli._gateway import JsonOption, UrlOption, client, shown, when
from ddparity.cli._options import StoreOption
from ddparity.cli._output import emit, emit_json, table


def jobs(
    status: Annotated[
        list[str] | None, typer.Option("--status", metavar="STATUS", help="Only these. Repeatable.")
    ] = None,
    prefix: Annotated[str, typer.Option(metavar="TEXT", help="Only names that begin so.")] = "",
    limit: Annotated[int, typer.Option(metavar="N", help="At most so many.")] = 50,
    everybody: Annotated[bool, typer.Option("--everybody", help="All owners'; needs the scope admin.")] = False,
    url: UrlOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the jobs of a gateway, the newest first."""
    filters: dict[str, Any] = {"prefix": prefix, "limit": min(limit, 200), "everybody": everybody}
    if status:
        filters["status"] = status
    with client(url, store) as gateway:
        found = list(islice(gateway.jobs(**filters), limit))
    if as_json:
        emit_json({"schema": 1, "jobs": found})
    elif not found:
        emit("No job. Submit one: ddparity submit --nproc 2")
    else:
        heads = ("JOB", "STATUS", "OWNER", "SIZE", "CREATED", "METRICS", "ERROR")
        emit(table(heads, [_cells(job) for job in found]))


def _cells(job: dict[str, Any]) -> list[str]:
    metrics = ", ".join(f"{name} {shown(value)}" for name, value in list(job["metrics"].items())[-2:])
    created = when(job["created"])
    cells = [job["job_id"], job["status"], job["owner"], str(job["world_size"]), created, metrics, job["error"] or ""]
    return [plain(cell) for cell in cells]
