"""A verdict as JSON: the document of ``ddparity compare --json``."""

from typing import Any

import msgspec

from ddparity.judge._verdict import Verdict


def render_json(verdict: Verdict) -> str:
    """Return a verdict as one indented JSON document; NaN and Inf, which JSON does not have, become null."""
    return msgspec.json.format(msgspec.json.encode(verdict, enc_hook=_plain_scalar), indent=2).decode()


def _plain_scalar(value: Any) -> Any:
    """Turn a numpy scalar that slipped into the evidence into Python's own."""
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(f"{type(value).__name__} does not belong into a verdict")
