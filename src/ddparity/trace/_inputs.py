"""What is known of a training's inputs without knowing them: the file from which inputs are made up elsewhere.

Shapes, dtypes, ranges, padding and structure; of the data itself not a value beyond its extremes, and those of floats
are rounded outwards.
"""

import msgspec

FOLDER = "inputs"
"""Folder below a trial's ``private`` in which each process leaves what it saw, as ``<pid>.json``."""


class Padding(msgspec.Struct, kw_only=True):
    """Rows of different length that were filled up with one value.

    Attributes:
        left: Whether the filling stands before the row; else behind it.
        value: What was filled in.
        shortest: Length of the shortest row without it.
        longest: Length of the longest one.
    """

    left: bool = False
    value: float
    shortest: int
    longest: int


class InputSpec(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One value, or values that came at the same place one after the other.

    Attributes:
        kind: ``tensor``, ``array``, ``number``, ``flag``, ``text``, ``none``, ``tuple``, ``list``, ``repeated`` (a list
            of values alike), ``dict`` or ``table`` (a dictionary whose entries are attributes as well).
        dtype: Of tensors, arrays and numbers: ``float32``, ``int64``, ``bool``, ...
        shapes: One for each time it came; for ``repeated`` its length.
        low: Smallest value, padding apart; None where there is none.
        high: Largest value.
        whole: Whether all values are whole numbers.
        counted: Whether every row counts up by one from ``low``.
        padding: How rows were filled up, if they were.
        keys: Names of ``items`` in a dictionary.
        items: What is inside.
    """

    kind: str
    dtype: str = ""
    shapes: list[list[int]] = []
    low: float | None = None
    high: float | None = None
    whole: bool = False
    counted: bool = False
    padding: Padding | None = None
    keys: list[str] = []
    items: list["InputSpec"] = []


class DatasetSpec(msgspec.Struct, kw_only=True):
    """A dataset that a loader went over: how many items, and what one of them is."""

    length: int
    item: InputSpec


class InputSpecs(msgspec.Struct, kw_only=True):
    """All inputs of one process.

    Attributes:
        streams: What loaders and ``ddparity.feed`` handed out, batch by batch.
        readers: What functions that read data returned, call by call, by their dotted names.
        datasets: The script's own datasets by class, in the order in which they were made; None: never iterated.
        files: Files of data that the script opened. They never stand in what leaves the machine.
        hidden: Files that are to be treated as missing.
        problems: What could not be described.
    """

    streams: dict[str, InputSpec] = {}
    readers: dict[str, list[InputSpec]] = {}
    datasets: dict[str, list[DatasetSpec | None]] = {}
    files: list[str] = []
    hidden: list[str] = []
    problems: list[str] = []

    def taking(self, other: "InputSpecs") -> "InputSpecs":
        """Return what two processes saw together; of what both describe, the one that saw more of it."""
        streams = dict(self.streams)
        for name, spec in other.streams.items():
            if name not in streams or times(spec) > times(streams[name]):
                streams[name] = spec
        readers = dict(self.readers)
        for name, calls in other.readers.items():
            if len(calls) > len(readers.get(name, [])):
                readers[name] = calls
        return InputSpecs(
            streams=streams,
            readers=readers,
            datasets=other.datasets | self.datasets,
            files=list(dict.fromkeys(self.files + other.files)),
            problems=list(dict.fromkeys(self.problems + other.problems)),
        )


def times(spec: InputSpec) -> int:
    """Return how many times a value came, as the shapes inside it say."""
    return max([len(spec.shapes), *map(times, spec.items)])
