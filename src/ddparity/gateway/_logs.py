"""Reading a job's logs: which there are, a range of bytes, and what is appended while one looks."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ddparity.gateway.supervisor._logs import window_of

CHUNK = 64 << 10
_POLL_SECONDS = 0.2
_BEAT_SECONDS = 15.0
_RANGE = re.compile(r"bytes=(\d{0,19})-(\d{0,19})", re.ASCII)
_LOG = re.compile(r"([a-z]+)-(\d+)/(?:rank-(\d+)|(agent(?:-\d+)?))")


class LogMissing(LookupError):
    """There is no such log."""


class RangeRefused(ValueError):
    """The range that was asked for does not exist."""


@dataclass(frozen=True, kw_only=True)
class Log:
    """One log. Offsets count from the first byte that was ever written; those before ``first`` are gone."""

    path: Path
    phase: str
    attempt: int
    rank: str
    first: int
    base: int
    size: int

    def chunks(self, start: int, stop: int) -> Iterator[bytes]:
        """Yield the bytes from ``start`` to before ``stop``."""
        with self.path.open("rb") as file:
            file.seek(start - self.base)
            while start < stop and (chunk := file.read(min(CHUNK, stop - start))):
                start += len(chunk)
                yield chunk


def job_logs(paths: dict[str, Path]) -> list[Log]:
    """Return the logs at these paths, by phase, attempt and rank."""
    return [log for name, path in paths.items() if (log := _log(name, path)) is not None]


def find_log(paths: dict[str, Path], rank: str, phase: str, attempt: int | None) -> Log:
    """Return one log: of the last attempt where none is named.

    Raises:
        LogMissing: There is none.
    """
    found = [log for log in job_logs(paths) if (log.rank, log.phase) == (rank, phase)]
    if attempt is not None:
        found = [log for log in found if log.attempt == attempt]
    if not found:
        raise LogMissing(f"There is no log of rank {rank[:20]!r} in phase {phase[:20]!r} (yet).")
    return max(found, key=lambda log: log.attempt)


def parse_range(header: str | None, log: Log) -> tuple[int, int] | None:
    """Return the first byte and the one after the last that are asked for; None where all are.

    Raises:
        RangeRefused: None of them is there.
    """
    if header is None or (match := _RANGE.fullmatch(header.strip())) is None or not (match[1] or match[2]):
        return None  # what is not understood is not obeyed (RFC 9110, 14.2)
    if not match[1]:
        start, stop = max(log.first, log.size - int(match[2])), log.size
    else:
        start, stop = max(log.first, int(match[1])), log.size
        if match[2]:
            stop = min(stop, int(match[2]) + 1)
    if start >= stop:
        raise RangeRefused(f"The log has the bytes {log.first} to {log.size}.")
    return start, stop


async def follow(again: Callable[[], Log | None], start: int, over: Callable[[], bool]) -> AsyncIterator[bytes]:
    """Yield a log as server-sent events, from ``start`` until the job has ended and all of it was sent.

    Each event's id is the offset after it, so that a browser that comes back goes on where it was.

    Args:
        again: Looks the log up anew; None while it is not there.
        start: The first byte to send.
        over: Whether nothing will be appended any more.
    """
    quiet = 0.0
    while True:
        done = await asyncio.to_thread(over)  # asked before the log is read, so that its end is not missed
        log = await asyncio.to_thread(again)
        if log is not None and start < log.size:
            start = max(start, log.first)
            text = await asyncio.to_thread(_read, log, start)
            start += len(text)
            quiet = 0.0
            yield _event(text.decode("utf-8", "replace"), start)
        elif done:
            yield b"event: end\ndata: end\n\n"
            return
        else:
            await asyncio.sleep(_POLL_SECONDS)
            quiet += _POLL_SECONDS
            if quiet > _BEAT_SECONDS:
                quiet = 0.0
                yield b": still here\n\n"


def _read(log: Log, start: int) -> bytes:
    """Return the next piece; it ends with a line where there is one, so that no character is cut."""
    data = b"".join(log.chunks(start, min(log.size, start + CHUNK)))
    cut = data.rfind(b"\n") + 1
    return data[:cut] if cut and start + len(data) < log.size else data


def _event(text: str, offset: int) -> bytes:
    lines = "".join(f"data: {line}\n" for line in text.replace("\r\n", "\n").replace("\r", "\n").split("\n"))
    return f"id: {offset}\nevent: log\n{lines}\n".encode()


def _log(name: str, path: Path) -> Log | None:
    match = _LOG.fullmatch(name)
    if match is None:
        return None
    window = window_of(path)
    try:
        size = window.base + path.stat().st_size
    except OSError:
        return None
    rank = str(int(match[3])) if match[3] else match[4]
    return Log(
        path=path, phase=match[1], attempt=int(match[2]), rank=rank, first=window.first, base=window.base, size=size
    )
