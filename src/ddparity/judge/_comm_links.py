"""What the links between ranks do: latency and bandwidth of the collectives of a group, and point to point beside them.

Times of a call run from the moment at which its last rank came; of each size the quickest counts. A ring all-reduce of
n bytes over N ranks sends 2 (N - 1) / N n over each link; that is its bus bandwidth, in the words of nccl-tests.
"""

from collections.abc import Iterable

from ddparity.trace._ring_format import CallFlag, Kind
from ddparity.trace._rings import Call

from ._comm_run import CommRun

Fit = dict[str, float]


def links(run: CommRun, probe: CommRun | None) -> dict[str, Fit]:
    """Return the fit of each group, and that of the probe; against it the groups are held."""
    found = {label: fit for label in run.groups if (fit := _all_reduces(run, label))}
    alone = None if probe is None else point_to_point(probe)
    if alone is None:
        return found
    for fit in found.values():
        if alone["gb_per_s"]:
            fit["of_probe"] = round(fit["bus_gb_per_s"] / alone["gb_per_s"], 3)
    return {**found, "probe, point to point": alone}


def _all_reduces(run: CommRun, label: str) -> Fit | None:
    group = run.groups[label]
    ranks = [rank for rank in group.ranks if rank in run.members]
    if len(ranks) < 2 or len(set(run.hosts().values())) > 1:
        return None
    best: dict[int, float] = {}
    for seq in group.calls.get(ranks[0], {}):
        calls = {rank: call for rank in ranks if (call := group.calls[rank].get(seq)) is not None}
        if len(calls) == len(ranks) and all(c.kind is Kind.ALL_REDUCE and _is_timed(c) for c in calls.values()):
            _keep_best(best, run, calls.items())
    fit = fitted(best)
    if fit is not None:
        fit["bus_gb_per_s"] = round(fit["gb_per_s"] * 2 * (len(ranks) - 1) / len(ranks), 3)
    return fit


def point_to_point(run: CommRun) -> Fit | None:
    """Fit the transfers between ranks of one host."""
    if len(set(run.hosts().values())) > 1:
        return None
    best: dict[int, float] = {}
    for (sender, receiver, _, _), held in run.transfers.items():
        for sent, received in zip(held[Kind.SEND], held[Kind.RECV], strict=False):
            if received.done and sent.num_bytes == received.num_bytes:
                _keep_best(best, run, ((sender, sent), (receiver, received)))
    return fitted(best)


def _is_timed(call: Call) -> bool:
    return bool(call.done and call.flags & CallFlag.WAITED)


def _keep_best(best: dict[int, float], run: CommRun, calls: Iterable[tuple[int, Call]]) -> None:
    told = [(run.members[rank].ring, call) for rank, call in calls]
    last = max(ring.wall(call.entered) for ring, call in told)
    end = max(ring.wall(call.done) for ring, call in told)
    size = told[0][1].num_bytes
    best[size] = min(best.get(size, float("inf")), end - last)


def fitted(best: dict[int, float]) -> Fit | None:
    """Fit seconds = alpha + bytes / bandwidth through the quickest call of the smallest and of the largest size.

    Args:
        best: Bytes -> seconds.

    Returns:
        Latency in microseconds and bandwidth in GB/s; None where sizes are too close to each other to tell.
    """
    if len(best) < 2 or max(best) < 8 * max(1, min(best)):
        return None
    small, large = min(best), max(best)
    slope = (best[large] - best[small]) / (large - small)
    if slope <= 0:
        return None
    alpha = max(0.0, best[small] - slope * small)
    return {"alpha_us": round(1e6 * alpha, 1), "gb_per_s": round(1e-9 / slope, 3)}
