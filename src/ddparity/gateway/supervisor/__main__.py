"""``python -m ddparity.gateway.supervisor FOLDER``: supervise one job."""

import sys
from pathlib import Path

from ddparity.gateway.supervisor._folder import JobFolder
from ddparity.gateway.supervisor._supervise import supervise

if __name__ == "__main__":
    sys.exit(supervise(JobFolder(Path(sys.argv[1]).resolve())))
