"""The files of a trial: schema, writer (append-only, crash-safe), reader. pyarrow is loaded on first use."""

from typing import TYPE_CHECKING, Any

from ._atomic import write_atomically
from ._schema import (
    SCHEMA_VERSION,
    CaptureConfig,
    ControlProof,
    Event,
    GitFacts,
    RankFacts,
    RankStatus,
    Site,
    TrialFacts,
    TrialStatus,
)

if TYPE_CHECKING:
    from ._reader import (
        DigestRow,
        EventRow,
        Loads,
        RankTrace,
        SampleRow,
        SiteRow,
        Trial,
        WorkerStreams,
        read_json,
        read_stream,
        read_trial,
    )
    from ._streams import FLAG_GRAD, FLAG_RANDOM, FLAG_TRAINING
    from ._writer import RankWriter

__all__ = [
    "FLAG_GRAD",
    "FLAG_RANDOM",
    "FLAG_TRAINING",
    "SCHEMA_VERSION",
    "CaptureConfig",
    "ControlProof",
    "DigestRow",
    "Event",
    "EventRow",
    "GitFacts",
    "Loads",
    "RankFacts",
    "RankStatus",
    "RankTrace",
    "RankWriter",
    "SampleRow",
    "Site",
    "SiteRow",
    "Trial",
    "TrialFacts",
    "TrialStatus",
    "WorkerStreams",
    "read_json",
    "read_stream",
    "read_trial",
    "write_atomically",
]

_READER = ("DigestRow", "EventRow", "Loads", "RankTrace", "SampleRow", "SiteRow", "Trial", "WorkerStreams")
_READER += ("read_json", "read_stream", "read_trial")


def __getattr__(name: str) -> Any:
    if name in _READER:
        from . import _reader

        return getattr(_reader, name)
    if name == "RankWriter":
        from . import _writer

        return getattr(_writer, name)
    if name.startswith("FLAG_"):
        from . import _streams

        return getattr(_streams, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
