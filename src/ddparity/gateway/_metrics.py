"""What a job's script logged with ``ddparity.log_metric``: the last value of each name, and the series."""

import json
from pathlib import Path
from typing import Any

MAX_NAMES = 1000
MAX_POINTS = 2000
"""Of a longer series every so many points are shown."""
_MAX_BYTES = 80 << 20


def read_metrics(path: Path) -> dict[str, list[dict[str, Any]]]:
    """Return each metric's points, in the order in which they were logged; a line that is no point is left out."""
    series: dict[str, list[dict[str, Any]]] = {}
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES)
    except OSError:
        return series
    for line in data.splitlines():
        point = _point(line)
        if point is None:
            continue
        name = point.pop("name")
        if name in series or len(series) < MAX_NAMES:
            series.setdefault(name, []).append(point)
    return series


def last_values(series: dict[str, list[dict[str, Any]]]) -> dict[str, float | str]:
    """Return the last value of each metric; one that is no finite number is the word ``nan``, ``inf`` or ``-inf``."""
    return {name: points[-1]["value"] for name, points in series.items()}


def thinned(series: dict[str, list[dict[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
    """Return the series with so many points that they can be sent and drawn; the last one is always there."""
    return {
        name: points if len(points) <= MAX_POINTS else [*points[:: -(-len(points) // MAX_POINTS)], points[-1]]
        for name, points in series.items()
    }


def _point(line: bytes) -> dict[str, Any] | None:
    try:
        entry = json.loads(line)
        name, value, step, when = entry["name"], entry["value"], entry.get("step"), float(entry["time"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    known = isinstance(value, int | float) or value in ("nan", "inf", "-inf")
    if not isinstance(name, str) or isinstance(value, bool) or not known or not isinstance(step, int | None):
        return None
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        value = str(value)
    return {"name": name[:200], "value": value, "step": step, "time": when}
