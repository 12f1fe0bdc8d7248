"""Running a zoo: the scripts of a folder, each as control, as clean distributed run and with its fault.

A row is recorded and judged without its manifest entry; only then is it scored.
"""

import difflib
import sys
import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ddparity._errors import DdparityError, UsageError
from ddparity.judge import Verdict, compare_trials
from ddparity.trace._schema import TrialFacts
from ddparity.trials._runner import record, uninterrupted
from ddparity.trials._scoring import Outcome, Row, score
from ddparity.trials._spec import RecordSpec
from ddparity.trials._store import Store

MANIFEST = "manifest.jsonl"
STEPS = 8
_MAX_MANIFEST_BYTES = 16 << 20


@dataclass(frozen=True, kw_only=True)
class ZooOptions:
    """How the rows of a zoo are run.

    Attributes:
        folder: Where the scripts stand.
        store: Where the trials go.
        timeout_s: Seconds after which one of a row's three runs is ended.
        jobs: Rows that run at the same time.
        dtype: ``float64`` to promote every run, or None to leave them as the scripts are.
    """

    folder: Path
    store: Store
    timeout_s: float = 120.0
    jobs: int = 1
    dtype: str | None = None


def find_zoo(given: Path | None = None) -> Path:
    """Return the folder of the zoo: ``given``, else ``zoo`` here, else that of the source checkout.

    Raises:
        UsageError: None of them holds a manifest.
    """
    checkout = Path(__file__).parents[3] / "zoo"
    tried = [given] if given is not None else [Path("zoo"), checkout]
    for folder in tried:
        if (folder / MANIFEST).is_file():
            return folder.resolve()
    looked = " nor in ".join(repr(str(folder)) for folder in tried)
    raise UsageError(f"No {MANIFEST} in {looked}. Name the folder that holds it: ddparity zoo run --zoo DIR")


def read_manifest(folder: Path) -> list[Row]:
    """Return the rows of a zoo's manifest, in its order.

    Raises:
        UsageError: A line is not a row, a name comes twice, or a script is missing or outside the folder.
    """
    path = folder / MANIFEST
    if path.stat().st_size > _MAX_MANIFEST_BYTES:
        raise UsageError(f"{path} is larger than {_MAX_MANIFEST_BYTES} bytes: it is no manifest.")
    rows: dict[str, Row] = {}
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = msgspec.json.decode(line, type=Row)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise UsageError(f"{path}, line {number}: not a row of a manifest ({error}).") from error
        _check(row, rows, folder, f"{path}, line {number}")
        rows[row.name] = row
    return list(rows.values())


def _check(row: Row, rows: Collection[str], folder: Path, where: str) -> None:
    if row.name in rows:
        raise UsageError(f"{where}: the name {row.name!r} stands in an earlier line too.")
    if Path(row.file).name != row.file or not (folder / row.file).is_file():
        raise UsageError(f"{where}: {row.file!r} is not a script in {str(folder)!r}.")
    if row.nproc < 1:
        raise UsageError(f"{where}: nproc {row.nproc} cannot be used: at least 1 process has to run.")


def select(
    rows: Sequence[Row], names: Sequence[str] = (), *, layer: str | None = None, parallelism: str | None = None
) -> list[Row]:
    """Return the rows that are asked for, in the manifest's order.

    Args:
        rows: All rows.
        names: Names of rows; none means all.
        layer: Keep the rows of this layer.
        parallelism: Keep the rows of this parallelism.

    Raises:
        UsageError: A name, a layer or a parallelism does not occur, or nothing is left.
    """
    for name in names:
        _check_known("row", name, [row.name for row in rows])
    if layer is not None:
        _check_known("layer", layer, [row.layer for row in rows])
    if parallelism is not None:
        _check_known("parallelism", parallelism, [row.parallelism for row in rows])
    chosen = [
        row
        for row in rows
        if (not names or row.name in names)
        and (layer is None or row.layer == layer)
        and (parallelism is None or row.parallelism == parallelism)
    ]
    if not chosen:
        raise UsageError("No row of the zoo is left by these names and filters together.")
    return chosen


def _check_known(kind: str, value: str, known: Sequence[str]) -> None:
    if value in known:
        return
    choices = list(dict.fromkeys(known))
    near = difflib.get_close_matches(value, choices, n=3)
    more = f" and {len(choices) - 10} more" if len(choices) > 10 else ""
    hint = f"Did you mean: {', '.join(near)}?" if near else f"There are: {', '.join(choices[:10])}{more}."
    raise UsageError(f"No {kind} {value!r} in the zoo. {hint}")


def run_rows(
    rows: Sequence[Row], options: ZooOptions, on_done: Callable[[Outcome], None] = lambda _: None
) -> list[Outcome]:
    """Run and score rows; the outcomes come in the order of ``rows``.

    Args:
        rows: What to run.
        options: How.
        on_done: Called with each outcome as it comes in, from whichever thread ran it.

    Raises:
        KeyboardInterrupt: A run was interrupted; rows that have not begun are dropped.
    """
    stop = threading.Event()

    def run(row: Row) -> Outcome:
        if stop.is_set():
            raise KeyboardInterrupt
        done = run_row(row, options)
        on_done(done)
        return done

    if options.jobs == 1:  # on this thread, where an interrupt reaches the run
        return [run(row) for row in rows]
    with ThreadPoolExecutor(max_workers=options.jobs, thread_name_prefix="zoo") as pool:
        futures = [pool.submit(run, row) for row in rows]
        try:
            return [future.result() for future in futures]
        except BaseException:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def run_row(row: Row, options: ZooOptions) -> Outcome:
    """Record a row's three runs one after another, judge the two distributed ones, and score them."""
    start = time.monotonic()
    script = str(options.folder / row.file)
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(row.nproc), script]
    runs = _Runs(row.name, options)
    control = runs.record("control", [script], control=True)
    clean = runs.judge(control, "clean", launcher)
    faulty = runs.judge(control, "faulty", [*launcher, "--bug", row.name])
    scored = score(row, clean, faulty, time.monotonic() - start)
    return Outcome(row=row, clean=clean, faulty=faulty, score=scored, errors=runs.errors)


class _Runs:
    """The three runs of one row. It knows the row's name and nothing else of its manifest."""

    def __init__(self, name: str, options: ZooOptions) -> None:
        self._name = name
        self._options = options
        self.errors: list[str] = []

    def record(self, kind: str, arguments: list[str], *, control: bool = False) -> TrialFacts | None:
        """Record ``python ARGUMENTS --steps 8``; a run that cannot be started becomes an error of the row."""
        spec = RecordSpec(
            # One thread a process: the ranks share the cores, and an operation sums in the same order everywhere.
            command=["env", "OMP_NUM_THREADS=1", sys.executable, *arguments, "--steps", str(STEPS)],
            store=self._options.store,
            name=f"{self._name}.{kind}",
            control=control,
            prove=False,
            timeout_s=self._options.timeout_s,
            on_hang="stop",
            dtype=self._options.dtype,
            quiet=True,
        )
        try:
            facts = record(spec)
        except DdparityError as error:
            self.errors.append(f"{kind}: {error}")
            return None
        return uninterrupted(facts)

    def judge(self, control: TrialFacts | None, kind: str, arguments: list[str]) -> Verdict | None:
        """Record a distributed run and hold it against the control, however it ended."""
        candidate = self.record(kind, arguments)
        if candidate is None or control is None:
            return None
        store = self._options.store
        try:
            return compare_trials(store.path(control.id), store.path(candidate.id))
        except DdparityError as error:
            self.errors.append(f"{kind}: {error}")
            return None
