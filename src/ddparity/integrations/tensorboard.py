"""A trial as TensorBoard event files: a run a rank, so that the ranks lie over each other in every chart.

The files are written record by record: the usual writers put the name of the host into the names of their files.
"""

from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ddparity._errors import UsageError
from ddparity.integrations._history import Export, told
from ddparity.integrations._missing import missing

_FILE = "events.out.tfevents.{time:010d}.ddparity"
_OURS = "events.out.tfevents.*.ddparity"
_FORMAT = "brain.Event:2"


def export(exported: Export, to: Path) -> Path:
    """Write a trial; what an earlier export of the same trial wrote is replaced.

    Args:
        exported: The trial.
        to: Folder that ``tensorboard --logdir`` is given; the trial gets a folder of its own in it.

    Returns:
        The trial's folder.

    Raises:
        DependencyMissing: If TensorBoard is not installed.
        UsageError: If the folder cannot be written.
    """
    protocol = _Protocol()
    folder = to / exported.label
    try:
        for old in [*folder.glob(_OURS), *folder.glob(f"rank-*/{_OURS}")]:
            old.unlink()
        started = exported.facts.started
        for rank in exported.ranks:
            with _Events(folder / f"rank-{rank:05d}", started, protocol) as file:
                for point in exported.points:
                    if point.rank == rank:
                        file.scalar(point.name, point.value, point.step, point.time_ns / 1e9)
        with _Events(folder, started, protocol) as file:
            file.text("facts", _table(("fact", "value"), [(k, _shown(v)) for k, v in exported.settings.items()]))
            if exported.verdict is not None:
                file.text("verdict", _verdict(exported))
    except OSError as error:
        raise UsageError(f"--to {str(to)!r} cannot be written ({error.strerror}). Name another folder.") from error
    return folder


class _Protocol:
    """The parts of TensorBoard that make and write records: they need neither torch nor TensorFlow."""

    def __init__(self) -> None:
        try:
            self.records = import_module("tensorboard.summary.writer.record_writer").RecordWriter
            self.event = import_module("tensorboard.compat.proto.event_pb2").Event
            self.summary = import_module("tensorboard.compat.proto.summary_pb2").Summary
            self.tensor = import_module("tensorboard.util.tensor_util").make_tensor_proto
            self.text = import_module("tensorboard.plugins.text.metadata").create_summary_metadata
        except ImportError as error:
            raise missing("tensorboard", error) from error


class _Events:
    """One event file."""

    def __init__(self, folder: Path, time: float, protocol: _Protocol) -> None:
        self._protocol = protocol
        self._time = time
        folder.mkdir(parents=True, exist_ok=True)
        self._file = (folder / _FILE.format(time=max(0, int(time)))).open("wb")
        self._records = protocol.records(self._file)

    def __enter__(self) -> "_Events":
        self._write(wall_time=self._time, file_version=_FORMAT)
        return self

    def __exit__(self, *_: object) -> None:
        self._records.close()

    def scalar(self, tag: str, value: float, step: int, time: float) -> None:
        """Write one number."""
        made = self._protocol.summary
        self._write(wall_time=time, step=step, summary=made(value=[made.Value(tag=tag, simple_value=value)]))

    def text(self, tag: str, text: str) -> None:
        """Write a text in Markdown, for the tab of that name."""
        made, how = self._protocol.summary, self._protocol.text(display_name=None, description=None)
        tensor = self._protocol.tensor(np.array([text.encode()], dtype=object))
        self._write(wall_time=self._time, summary=made(value=[made.Value(tag=tag, metadata=how, tensor=tensor)]))

    def _write(self, **fields: Any) -> None:
        self._records.write(self._protocol.event(**fields).SerializeToString())


def _verdict(exported: Export) -> str:
    verdict = exported.verdict
    assert verdict is not None
    lines = [f"control `{verdict.control}`, candidate `{verdict.candidate}`", ""]
    lines += [_table(("layer", "verdict", "why"), told(verdict))]
    for layer in verdict.layers:
        first = verdict.first(layer)
        if first is not None:
            lines += ["", f"**{layer}**: {first.phase} of `{first.name}` at step {first.step}: {first.cause.text}"]
            lines += [f"`{first.cause.code}`, {first.cause.confidence}. {first.next}"]
    return "\n".join(lines)


def _table(heads: tuple[str, ...], rows: list[Any]) -> str:
    lines = [heads, ("---",) * len(heads), *rows]
    return "\n".join(f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
