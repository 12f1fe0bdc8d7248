"""What is known about an error of torch.distributed. Its text stays here; the trace keeps kind, indices and names."""

import re
from collections.abc import Sequence
from typing import Any

_KINDS = (
    ("marked_twice", r"mark a variable ready only once|marked as ready twice"),
    ("graph_changed", r"training graph has changed in this iteration"),
    ("unused_parameters", r"Expected to have finished reduction in the prior iteration"),
    ("shapes_differ", r"(verify|verification of).*(param|model)|params? .*(shape|sizes)|inconsistent.*param"),
    ("interface", r"Unable to find address for|[Nn]o interface|failed to (resolve|find).*(interface|address)"),
    ("timeout", r"[Tt]imed? ?out|[Tt]imeout"),
    ("connection", r"[Cc]onnection (closed|reset|refused)|[Bb]roken pipe|closed by peer|[Ss]ocket (closed|error)"),
    ("size_mismatch", r"[Rr]eceived data size doesn't match|preamble\.length|sizes? (do|does) not match"),
    ("address_in_use", r"address already in use|EADDRINUSE"),
    ("resolve", r"could not be resolved|Name or service not known|nodename nor servname|getaddrinfo"),
    ("world_size", r"(world[_ ]size|rank).*(invalid|mismatch|must be|out of|exceed|should be)"),
    ("modified_in_place", r"modified by an inplace operation"),
    (
        "out_of_memory",
        r"out of memory|can(no|')t allocate memory|not enough memory|\bOOM\b|memory (budget|limit|capacity)"
        r"|\d ?([KMG]i?B|bytes)\b.*\b(budget|capacity|limit)\b",
    ),
)
_KNOWN = tuple((kind, re.compile(pattern)) for kind, pattern in _KINDS)
_INDICES = re.compile(r"[Pp]arameter indices which did not receive grad for rank \d+: ([0-9 ,]+)")
_INDEX = re.compile(r"[Pp]arameter at index (\d+)")
_NAMED = re.compile(r"with name ([\w.]+)|did not receive grad for rank \d+: ([A-Za-z_][\w., ]*)")
_PEER = re.compile(r"\[?(\d+\.\d+\.\d+\.\d+)\]?:\d+")
_MAX = 20_000


def describe_error(error: BaseException, reduced: Sequence[str]) -> dict[str, Any]:
    """Return the kind of an error, and the parameters that it is about.

    Args:
        error: The error, or the last of a chain.
        reduced: Names of the parameters that the wrapper reduces, by their index.
    """
    text = str(error)[:_MAX]
    kind = next((kind for kind, pattern in _KNOWN if pattern.search(text)), "")
    if not kind and (type(error).__name__.startswith("Dist") or "/gloo/" in text or "NCCL error" in text):
        kind = "backend"
    found: dict[str, Any] = {"kind": kind} if kind else {}
    indices = [int(part) for match in _INDICES.findall(text) for part in re.findall(r"\d+", match)]
    indices += [int(match) for match in _INDEX.findall(text)]
    names = [reduced[index] for index in indices if index < len(reduced)]
    for first, several in _NAMED.findall(text):
        names += [name for name in re.split(r"[,\s]+", first or several) if name in reduced]
    if names:
        found["parameters"] = list(dict.fromkeys(names))[:50]
    return found
