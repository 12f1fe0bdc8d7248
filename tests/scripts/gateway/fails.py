"""A training that fails on one device."""

raise ValueError("planted")
