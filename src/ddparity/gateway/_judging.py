"""Judging on request: in a process of its own, for a bounded time, a few at a time, and remembered.

What was judged is known again by the names, sizes and times of the trials' files: a trial that was written to since is
judged anew. The event loop only waits.
"""

import asyncio
import hashlib
import logging
import os
import sys
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

from starlette.concurrency import run_in_threadpool

from ddparity._errors import ExitCode
from ddparity.gateway._errors import Refused

_LOG = logging.getLogger("ddparity.gateway")
_MAX_DOCUMENT = 64 << 20
_MAX_CACHE = 128 << 20
_MAX_WAITING = 8
"""So many of one caller's requests may wait for their turn."""
_AT_A_TIME = 2
_RUNNING_SECONDS = 2.0
"""What was judged of a trial that still runs holds for so long: its rings grow without a sign on the outside."""
_MAX_FILES = 20_000
_LEFT_OUT = {"private", "comparisons"}


@dataclass
class _Turn:
    """One caller's requests: one is judged, the others wait."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    num: int = 0


class Judging:
    """Judges trials for those who look at pages.

    Args:
        store: The folder of the store; its path is taken out of what is told.
        timeout_s: Seconds that one judgement may take.
    """

    def __init__(self, store: Path, timeout_s: float) -> None:
        self._store = store
        self._timeout_s = timeout_s
        self._turns: dict[str, _Turn] = {}
        self._places = asyncio.Semaphore(_AT_A_TIME)
        self._kept: OrderedDict[str, tuple[float, bytes]] = OrderedDict()
        self._size = 0

    async def judged(self, owner: str, *folders: Path, runs: bool = False) -> bytes:
        """Return what one trial comes to (``Examination``), or a candidate (``Comparison``), as MessagePack.

        Args:
            owner: Who asks; of one caller's requests one is judged at a time.
            folders: One trial's folder, or two.
            runs: Whether one of them is still being written.

        Raises:
            Refused: 422 where a trace cannot be read, 429 where too many of the caller's requests wait, 503 where it
                took too long.
        """
        key = await run_in_threadpool(fingerprint, folders)
        if (known := self._known(key)) is not None:
            return known
        async with self._turn(owner), self._places:
            if (known := self._known(key)) is not None:  # the one before in the queue asked for the same
                return known
            document = await self._run(folders)
            self._keep(key, document, time.monotonic() + (_RUNNING_SECONDS if runs else 1e9))
            return document

    @asynccontextmanager
    async def _turn(self, owner: str) -> AsyncIterator[None]:
        turn = self._turns.setdefault(owner, _Turn())
        if turn.num > _MAX_WAITING:
            raise Refused(429, f"{turn.num} of your pages are being made. Wait for them.", headers={"Retry-After": "5"})
        turn.num += 1
        try:
            async with turn.lock:
                yield
        finally:
            turn.num -= 1
            if not turn.num:
                self._turns.pop(owner, None)

    async def _run(self, folders: tuple[Path, ...]) -> bytes:
        command = [sys.executable, "-m", "ddparity.gateway.examine", str(int(self._timeout_s) + 1), *map(str, folders)]
        env = {name: value for name, value in os.environ.items() if not name.startswith("DDPARITY_")}
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *command, env=env, stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe
        )
        try:
            document, said = await asyncio.wait_for(process.communicate(), self._timeout_s)
        except TimeoutError:
            raise Refused(
                503,
                f"Judging took longer than {self._timeout_s:g} s (judge_timeout_s). On the command line it has the "
                f"time it needs: {self._by_hand(folders)}",
            ) from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode == ExitCode.PASS and len(document) <= _MAX_DOCUMENT:
            return document
        text = said.decode("utf-8", "replace").strip()
        if process.returncode == ExitCode.INCONCLUSIVE:
            raise Refused(422, text.replace(f"{self._store}{os.sep}", "")[:2000])
        _LOG.error("judging %s ended with %s: %s", folders, process.returncode, text[-2000:])
        raise Refused(
            422, f"These files could not be judged; the gateway's log says why. See: {self._by_hand(folders)}"
        )

    def _by_hand(self, folders: tuple[Path, ...]) -> str:
        names = " ".join(folder.name for folder in folders)
        return f"ddparity compare {names}" if len(folders) == 2 else f"ddparity trials show {names}"

    def _known(self, key: str) -> bytes | None:
        kept = self._kept.get(key)
        if kept is None or kept[0] < time.monotonic():
            return None
        self._kept.move_to_end(key)
        return kept[1]

    def _keep(self, key: str, document: bytes, until: float) -> None:
        old = self._kept.pop(key, (0.0, b""))
        self._kept[key] = (until, document)
        self._size += len(document) - len(old[1])
        while self._size > _MAX_CACHE and len(self._kept) > 1:
            _, (_, dropped) = self._kept.popitem(last=False)
            self._size -= len(dropped)


def fingerprint(folders: tuple[Path, ...]) -> str:
    """Return what changes when a trial's files do: a hash over their names, sizes and times."""
    found = hashlib.sha256(metadata.version("ddparity").encode())
    for folder in folders:
        found.update(f"\0\0{folder.name}".encode())
        for number, (name, size, at) in enumerate(_files(folder, "")):
            if number >= _MAX_FILES:
                break
            found.update(f"\0{name}\0{size}\0{at}".encode("utf-8", "surrogateescape"))
    return found.hexdigest()


def _files(folder: Path, below: str) -> Iterator[tuple[str, int, int]]:
    try:
        with os.scandir(folder / below) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
    except OSError:  # it was removed meanwhile: the judge says so
        return
    for entry in found:
        name = f"{below}/{entry.name}" if below else entry.name
        if entry.is_dir(follow_symlinks=False):
            if name not in _LEFT_OUT:
                yield from _files(folder, name)
            continue
        try:
            stat = entry.stat(follow_symlinks=False)
        except OSError:
            continue
        yield name, stat.st_size, stat.st_mtime_ns
