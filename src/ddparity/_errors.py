"""The exception tree of ddparity and the exit code of each branch.

    DdparityError                      (exit 2 unless a branch says otherwise)
    +-- UsageError (ValueError)        2   a flag, a name or a path the user gave cannot be used
    |   +-- TrialNotFound              2   no trial of that name or id in the store
    |   +-- StaleControl               2   the code changed since the control was recorded
    |   +-- DependencyMissing (ImportError) 2  a package that only some commands need is not installed
    +-- TraceError (ValueError)        3   a recorded file is missing, truncated, corrupt or too large
    +-- CheckpointDamaged (ValueError) 1   a checkpoint is not what was sealed
    +-- CommandFailed                  4   the launched command failed or timed out

Every message says what was wrong, the value given, the values allowed, and the next command to run.
"""

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of every ddparity command; 1 wins over 3, 3 over 0."""

    PASS = 0
    DEVIATES = 1
    USAGE = 2
    INCONCLUSIVE = 3
    COMMAND_FAILED = 4
    INTERRUPTED = 130


_OF_STATUS = {
    "PASS": ExitCode.PASS,
    "RUNNING": ExitCode.PASS,
    "DEVIATES": ExitCode.DEVIATES,
    "FAILED": ExitCode.COMMAND_FAILED,
    "INTERRUPTED": ExitCode.INTERRUPTED,
}


def exit_code_of(status: str) -> ExitCode:
    """Return the exit code of a verdict's word; INCONCLUSIVE and NOT_TESTED are not enough evidence."""
    return _OF_STATUS.get(status, ExitCode.INCONCLUSIVE)


class DdparityError(Exception):
    """Root of every error that ddparity raises on purpose."""

    exit_code = ExitCode.USAGE


class UsageError(DdparityError, ValueError):
    """Something the user gave cannot be used; the message names the values allowed."""


class TrialNotFound(UsageError):
    """No trial of that name or id is in the store."""


class StaleControl(UsageError):
    """Control and candidate ran different versions of the same code; the message names it and what to record again."""


class DependencyMissing(UsageError, ImportError):
    """A package that only this needs cannot be imported; the message names the command that installs it."""


class TraceError(DdparityError, ValueError):
    """A recorded file cannot be read: missing, truncated, corrupt or of absurd size."""

    exit_code = ExitCode.INCONCLUSIVE


class CheckpointDamaged(DdparityError, ValueError):
    """A checkpoint is mixed of two saves, changed, incomplete or, where a seal is required, was never sealed."""

    exit_code = ExitCode.DEVIATES


class CommandFailed(DdparityError):
    """The launched command could not be started, failed or timed out."""

    exit_code = ExitCode.COMMAND_FAILED
