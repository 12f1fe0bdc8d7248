"""The process beside each job that outlives the web process: it starts the job, watches it and sees to its end.

Standard library and ddparity's own small files only: it starts in a moment and has nothing that can break with the
web framework. It is run as ``python -m ddparity.gateway.supervisor FOLDER``; everything it needs stands in the folder.
"""

from ddparity.gateway.supervisor._folder import JobFolder
from ddparity.gateway.supervisor._members import TAG_VARIABLE, Members
from ddparity.gateway.supervisor._spec import JobSpec, Phase, Result

__all__ = ["TAG_VARIABLE", "JobFolder", "JobSpec", "Members", "Phase", "Result"]
