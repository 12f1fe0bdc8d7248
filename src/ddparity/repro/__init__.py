"""A script that shows a finding on another machine, with inputs that are made up. Importing this loads no torch."""

from ddparity.repro._make import Product, ReproOptions, make_repro
from ddparity.repro._run import reproduce

__all__ = ["Product", "ReproOptions", "make_repro", "reproduce"]
