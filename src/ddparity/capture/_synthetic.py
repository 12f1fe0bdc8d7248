"""Inputs described, or made up, where they enter: loaders, ``ddparity.feed``, functions that read data, datasets.

Both are for ``ddparity repro``. One run of the control describes its inputs (no value is kept); the reproduction makes
up inputs that fit, the same ones for the control and for every rank, as batches of the control are pinned to ranks.
"""

import contextlib
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from torch.utils import data

from ddparity.trace import read_json, write_atomically
from ddparity.trace._inputs import FOLDER, DatasetSpec, InputSpec, InputSpecs

from ._bank import FEED, Pins, hand_out
from ._describe import NotDescribable, describe, joined
from ._loader_facts import root_of
from ._made_up import made_up
from ._readers import around_readers

if TYPE_CHECKING:
    from ._session import Session

MAX_BATCHES = 256
"""Batches a stream whose shapes are kept; later ones repeat these."""
_MAX_FILES = 1000
_ITEMS = 3
"""Items of a dataset that are looked at."""
_CODE = (".py", ".pyc", ".so", ".pth", ".ring", ".arrow")
_SYSTEM = ("/proc/", "/sys/", "/dev/", "/etc/", "/usr/", "/lib/")


def install_synthetic(session: "Session") -> None:
    """Describe or make up inputs, as the configuration asks."""
    config = session.config
    if config.describe_inputs:
        Describer(session).install()
    elif config.synthetic is not None:
        Maker(session, read_json(Path(config.synthetic), InputSpecs)).install()


class Describer:
    """Describes what a process of the control reads and is handed, and writes it into the private folder."""

    def __init__(self, session: "Session") -> None:
        self._folder = Path(session.config.trial_dir) / "private" / FOLDER
        self._own = os.path.dirname(os.path.dirname(session.config.trial_dir)) + os.sep
        self._session = session
        self._specs = InputSpecs()
        self._numbers: dict[str, int] = {}
        self._started = time.time()
        self._pid = os.getpid()

    def install(self) -> None:
        """Sit where inputs enter."""
        hand_out(self._session, self)
        around_readers(self._read, self._started)
        number_datasets(lambda dataset, name: None)
        sys.addaudithook(self._audit)
        watch = data.DataLoader.__iter__

        def begun(loader: Any) -> Any:
            self._dataset(root_of(loader.dataset)[0])
            return watch(loader)

        data.DataLoader.__iter__ = begun  # pyrefly: ignore

    def _forked(self) -> None:
        """Begin anew in a child: a loader's worker says which files it opens, and its parent the rest."""
        if os.getpid() != self._pid:
            self._pid, self._specs = os.getpid(), InputSpecs()

    def passed(self, batch: Any, stream: str = FEED, ranks: tuple[int, int] | None = None) -> Any:
        """Describe a batch; it goes on to the script as it is."""
        number = self._numbers[stream] = self._numbers.get(stream, -1) + 1
        if number < MAX_BATCHES and self._session.may_record():
            try:
                spec, known = describe(batch), self._specs.streams.get(stream)
                self._specs.streams[stream] = spec if known is None else joined(known, spec)
            except Exception as error:
                self._problem(f"batches hold {_why(error)}")
            self._write()
        return batch

    def _read(self, name: str, call: Callable[[], Any]) -> Any:
        result = call()
        if self._session.may_record():
            try:
                self._specs.readers.setdefault(name, []).append(describe(result))
            except Exception as error:
                self._problem(f"{name} returns {_why(error)}")
            self._write()
        return result

    def _dataset(self, dataset: Any) -> None:
        place = getattr(dataset, "_ddparity_place", None)
        if place is None or not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
            return
        name, number = place
        try:
            length = len(dataset)
            item = describe(dataset[0])
            for index in range(1, min(length, _ITEMS)):
                item = joined(item, describe(dataset[index]))
        except Exception as error:
            self._problem(f"items of {name.rpartition('.')[2]} are {_why(error)}")
            return
        known = self._specs.datasets.setdefault(name, [])
        known.extend([None] * (number + 1 - len(known)))
        known[number] = DatasetSpec(length=length, item=item)
        self._write()

    def _problem(self, text: str) -> None:
        if text not in self._specs.problems:
            self._specs.problems.append(text)

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            with contextlib.suppress(Exception):
                self._opened(*arguments[:3])

    def _opened(self, path: Any, mode: Any, flags: Any) -> None:
        if not isinstance(path, (str, os.PathLike, bytes)) or (isinstance(flags, int) and flags & os.O_WRONLY):
            return
        found = os.path.abspath(os.fsdecode(path))
        if found.endswith(_CODE) or found.startswith((*_SYSTEM, *_prefixes(), self._own)):
            return
        self._forked()
        if found in self._specs.files or len(self._specs.files) >= _MAX_FILES or not os.path.isfile(found):
            return
        if os.stat(found).st_mtime < self._started:
            self._specs.files.append(found)
            self._write()

    def _write(self) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(self._folder / f"{os.getpid()}.json", msgspec.json.encode(self._specs))


def _why(error: Exception) -> str:
    """Say what cannot be described; an error of somebody else's may tell of the data, so only its kind is named."""
    return str(error) if isinstance(error, NotDescribable) else f"what cannot be looked at ({type(error).__name__})"


def _prefixes() -> tuple[str, ...]:
    own = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    return tuple(f"{path}{os.sep}" for path in {sys.prefix, sys.base_prefix, sys.exec_prefix, own})


class MadeUpPins(Pins):
    """Hands out a rank's rows of batches that are made up as the control's were described."""

    def __init__(self, streams: dict[str, InputSpec]) -> None:
        super().__init__(Path())
        self._streams = streams
        self._made: dict[tuple[str, int], Any] = {}

    def _read(self, stream: str, number: int) -> Any:
        spec = self._streams.get(stream)
        if spec is None:
            return None
        key = stream, number
        if key not in self._made:
            for old in [each for each in self._made if each[1] != 0]:
                del self._made[old]
            self._made[key] = made_up(spec, stream, number)
        return self._made[key]


class Maker:
    """Makes up what a process reads and is handed."""

    def __init__(self, session: "Session", specs: InputSpecs) -> None:
        self._session = session
        self._specs = specs
        self._numbers: dict[str, int] = {}

    def install(self) -> None:
        """Sit where inputs enter."""
        if self._specs.streams:
            hand_out(self._session, MadeUpPins(self._specs.streams))
        around_readers(self._read, time.time())
        number_datasets(self._stand_in)
        if self._specs.hidden:
            hidden = frozenset(self._specs.hidden)

            def refuse(event: str, arguments: tuple[Any, ...]) -> None:
                if event == "open" and isinstance(arguments[0], str) and os.path.abspath(arguments[0]) in hidden:
                    raise FileNotFoundError(2, "No such file (it holds data and does not come along)", arguments[0])

            sys.addaudithook(refuse)

    def _read(self, name: str, call: Callable[[], Any]) -> Any:
        known = self._specs.readers.get(name)
        if not known:
            return call()
        number = self._numbers[name] = self._numbers.get(name, -1) + 1
        return made_up(known[number % len(known)], f"{name}/{number % len(known)}")

    def _stand_in(self, dataset: Any, name: str) -> DatasetSpec | None:
        _, number = dataset._ddparity_place
        known = self._specs.datasets.get(name, [])
        return known[number] if number < len(known) else None


def number_datasets(stand_in: Callable[[Any, str], DatasetSpec | None]) -> None:
    """Number the datasets of each class; one whose data cannot be read answers as its description says.

    Args:
        stand_in: Returns the description of a dataset of a class, or None to leave it as it is.
    """
    counts: dict[str, int] = {}

    def beginning(cls: Any, name: str) -> None:
        plain = cls.__init__

        def begin(self: Any, *args: Any, **kwargs: Any) -> None:
            if not hasattr(self, "_ddparity_place"):
                own = f"{type(self).__module__}.{type(self).__qualname__}"
                self._ddparity_place = own, counts.get(own, 0)
                counts[own] = counts.get(own, 0) + 1
            try:
                plain(self, *args, **kwargs)
            except Exception:
                if stand_in(self, self._ddparity_place[0]) is None:
                    raise

        cls.__init__ = begin

    def answering(cls: Any, name: str, answer: Callable[..., Any]) -> None:
        plain = vars(cls)[name]

        def call(self: Any, *args: Any) -> Any:
            try:
                return plain(self, *args)
            except (OSError, AttributeError, ImportError):
                spec = stand_in(self, self._ddparity_place[0]) if hasattr(self, "_ddparity_place") else None
                if spec is None:
                    raise
                return answer(self, spec, *args)

        setattr(cls, name, call)

    def length(_: Any, spec: DatasetSpec) -> int:
        return spec.length

    def item(dataset: Any, spec: DatasetSpec, index: Any) -> Any:
        return made_up(spec.item, f"{dataset._ddparity_place}/{index}")

    def subclassed(cls: Any, **kwargs: Any) -> None:
        super(data.Dataset, cls).__init_subclass__(**kwargs)
        if "__init__" in vars(cls):
            beginning(cls, cls.__qualname__)
        for name, answer in (("__len__", length), ("__getitem__", item)):
            if name in vars(cls):
                answering(cls, name, answer)

    data.Dataset.__init_subclass__ = classmethod(subclassed)  # pyrefly: ignore
