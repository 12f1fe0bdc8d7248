"""What runs jobs: five calls, each of which may be made again after a crash without harm."""

import enum
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ddparity.gateway.supervisor import JobSpec, Result


class Stage(enum.Enum):
    """How far a job has come in its engine."""

    HELD = "held"
    """Prepared, not released."""
    QUEUED = "queued"
    """Released; the engine has no room for it yet."""
    RUNNING = "running"
    ENDED = "ended"
    """Over, and no process of it is left."""
    GONE = "gone"
    """Its supervisor was lost; what it left has been ended."""
    UNREACHABLE = "unreachable"
    """The engine does not answer; what was known of the job still holds."""
    CLEARING = "clearing"
    """Its supervisor was lost; what it left is being ended."""


@dataclass(frozen=True, kw_only=True)
class Observation:
    """What an engine sees of a job; ``result`` where it ENDED, ``reason`` where it is GONE."""

    stage: Stage
    result: Result | None = None
    reason: str = ""


class Engine(Protocol):
    """Runs jobs. A job is known by its ``uid``, drawn at random: the same call for the same uid is the same job."""

    def submit_held(self, spec: JobSpec) -> str:
        """Prepare a job so that it does not start yet; return what the engine calls it."""
        ...

    def release(self, spec: JobSpec, ref: str) -> None:
        """Let a prepared job start; a job that started once is never started again."""
        ...

    def state(self, uid: str, ref: str) -> Observation:
        """Return what can be seen of a job, whoever started it."""
        ...

    def cancel(self, uid: str, ref: str, why: str) -> None:
        """Ask for a job's end; its state says when it has come."""
        ...

    def log_paths(self, uid: str) -> dict[str, Path]:
        """Return the logs that are there, by name: ``train-0/rank-00000`` and so on."""
        ...


def log_paths(folder: Path) -> dict[str, Path]:
    """Return the logs in a job's folder, by name."""
    base = folder / "logs"
    return {str(path.relative_to(base).with_suffix("")): path for path in sorted(base.glob("*/*.log"))}
