"""The calls and steps of a trial as Chrome trace events: opens in Perfetto and in chrome://tracing.

The format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU (Trace Event Format).
"""

from collections.abc import Iterator
from typing import Any

from ddparity.judge._comm_finding import told
from ddparity.trace._ring_format import COLLECTIVES, CallFlag, Field, Kind
from ddparity.trace._rings import Call, Ring

_TRACKS = {Kind.STEP: 0, Kind.DATA: 1, Kind.FORWARD: 1, Kind.BACKWARD: 1, Kind.OPTIMIZER: 1}
_CALLS = 2
_TRACK_NAMES = ("steps", "phases", "calls")


def timeline(rings: list[Ring]) -> dict[str, Any]:
    """Return a document of Chrome trace events: a process a rank, with a track of steps, of phases and of calls."""
    ranks = [ring for ring in rings if ring.rank >= 0]
    begin = min((ring[Field.STARTED_WALL] for ring in ranks), default=0)
    events = [event for ring in ranks for event in _of_rank(ring, begin)]
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"producer": "ddparity", "schema": 1}}


def _of_rank(ring: Ring, begin: int) -> Iterator[dict[str, Any]]:
    where = {"pid": ring.rank}
    host = f"{ring.text(Field.HOST)}, pid {ring[Field.PID]}"
    yield {**where, "ph": "M", "name": "process_name", "args": {"name": f"rank {ring.rank} ({host})"}}
    for track, name in enumerate(_TRACK_NAMES):
        yield {**where, "tid": track, "ph": "M", "name": "thread_name", "args": {"name": name}}
    shift = ring[Field.STARTED_WALL] - begin - ring[Field.STARTED]
    for record in ring.records:
        start = (record.entered + shift) / 1e3
        duration = max(0, record.done - record.entered) / 1e3
        if record.kind in _TRACKS:
            name = f"step {record.step}" if record.kind is Kind.STEP else record.op
            track = _TRACKS[record.kind]
            yield {
                **where,
                "tid": track,
                "ph": "X",
                "name": name,
                "cat": "step",
                "ts": start,
                "dur": duration,
                "args": {"step": record.step},
            }
        elif record.kind in COLLECTIVES:
            event = {
                **where,
                "tid": _CALLS,
                "name": record.op,
                "cat": record.group,
                "ts": start,
                "args": _arguments(record),
            }
            yield {**event, "ph": "X", "dur": duration} if record.done else {**event, "ph": "i", "s": "t"}


def _arguments(call: Call) -> dict[str, Any]:
    flags = [flag.name.lower() for flag in CallFlag if call.flags & flag and flag.name]
    return {
        "call": told(call),
        "number": call.seq,
        "step": call.step,
        "bytes": call.num_bytes,
        "site": call.site,
        "flags": ", ".join(flags),
    }
