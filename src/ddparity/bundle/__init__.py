"""What may leave the machine: one zip file with digests, facts and calls of some trials, nothing of their data."""

from ddparity.bundle._read import open_bundle
from ddparity.bundle._write import Entry, plan_bundle, write_bundle

__all__ = ["Entry", "open_bundle", "plan_bundle", "write_bundle"]
