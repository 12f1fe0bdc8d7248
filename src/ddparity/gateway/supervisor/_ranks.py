"""What the ranks of one attempt wrote, and what became of them: who finished, who died first, and of what."""

import signal
import time
from pathlib import Path

from ddparity import _linux

from ._folder import read
from ._spec import Mark, NodeError, RankEnding, RankFailure


class Ranks:
    """The ranks of one attempt, known by the marks they leave in ``folder``; those of ``node`` can be looked at."""

    def __init__(self, folder: Path, num_ranks: int, node: str = "0") -> None:
        self._folder = folder
        self._node = node
        self._num_ranks = num_ranks
        self._marks: dict[int, Mark] = {}
        self._statuses: dict[int, int] = {}
        self.died: dict[int, float] = {}

    def look(self) -> None:
        """See which ranks run; note those that ended without coming to the end of their script."""
        for rank in range(self._num_ranks):
            mark = self._marks.get(rank) or read(self._folder / f"rank-{rank:05d}.json", Mark)
            if mark is None or rank in self.died or mark.node != self._node:
                continue
            self._marks[rank] = mark
            status = _linux.exit_status(mark.pid)
            if status is not None:
                self._statuses[rank] = status
            gone = not _linux.alive(mark.pid) or _linux.start_time(mark.pid) != mark.start
            if gone and not self._finished(rank):
                self.died[rank] = time.time()

    def num_finished(self) -> int:
        """Return how many ranks came to the end of their script."""
        return sum(self._finished(rank) for rank in range(self._num_ranks))

    def aborted_at_exit(self) -> bool:
        """Return whether every rank had finished and those that failed did so by a signal: at the interpreter's end."""
        failures = self._failures()
        return (
            self.num_finished() == self._num_ranks
            and bool(failures)
            and all(each.exit_code < 0 for each in failures.values())
        )

    def first_error(self) -> str | None:
        """Return which rank failed first and how, for people.

        A rank that was killed goes before those that raised: their peers' errors ("connection closed") follow from it.
        """
        failures = self._failures()
        endings = self._endings()
        killed = [
            (each.time, rank, f"was killed by {signal_name(-each.exit_code)}")
            for rank, each in failures.items()
            if each.exit_code < 0 and -each.exit_code != signal.SIGTERM and not self._finished(rank)
        ]
        if not any(rank in self._marks for rank in failures):  # else the launcher ended those that it does not list
            killed += [
                (when, rank, _silent(self._statuses.get(rank)))
                for rank, when in self.died.items()
                if rank not in endings and not self._was_asked_to_end(rank)
            ]
        raised = [(end.time, rank, f"raised {end.error}") for rank, end in endings.items() if end.error]
        other = [(each.time, rank, _ended(each.exit_code)) for rank, each in failures.items()]
        for group in (killed, raised, other):
            if group:
                _, rank, text = min(group)
                return f"rank {rank} {text}"
        told = [error for path in self._folder.glob("error-*.json") if (error := read(path, NodeError)) is not None]
        return min(told, key=lambda each: each.time).error if told else None

    def _was_asked_to_end(self, rank: int) -> bool:
        status = self._statuses.get(rank)
        return status is not None and status & 0x7F == signal.SIGTERM

    def _finished(self, rank: int) -> bool:
        ending = self._endings_of(rank)
        return ending is not None and ending.finished

    def _endings_of(self, rank: int) -> RankEnding | None:
        return read(self._folder / f"ending-{rank:05d}.json", RankEnding)

    def _endings(self) -> dict[int, RankEnding]:
        found = {rank: self._endings_of(rank) for rank in range(self._num_ranks)}
        return {rank: ending for rank, ending in found.items() if ending is not None}

    def _failures(self) -> dict[int, RankFailure]:
        found: dict[int, RankFailure] = {}
        for path in sorted(self._folder.glob("failures-*.json")):
            found |= read(path, dict[int, RankFailure]) or {}
        return found


def _silent(status: int | None) -> str:
    if status is not None and status & 0x7F:
        return f"was killed by {signal_name(status & 0x7F)}"
    return "ended without a word: it was killed, or it left by os._exit"


def _ended(exit_code: int) -> str:
    return f"ended with exit code {exit_code}" if exit_code >= 0 else f"was killed by {signal_name(-exit_code)}"


def signal_name(number: int) -> str:
    """Return a signal's name, such as SIGKILL."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
