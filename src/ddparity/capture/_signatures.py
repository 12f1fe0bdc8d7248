"""What each method of a process group is called with: the tensors, root and reduce op of a call."""

from collections.abc import Callable
from typing import Any

import torch
from torch.distributed import ReduceOp

from ddparity.trace._ring_format import POINT_TO_POINT, REDUCE_OPS, Kind

_SUM = REDUCE_OPS.index("sum")
_IS_OWN_HASH = all(hash(op) == op.value == hash(ReduceOp(op)) for op in (ReduceOp.SUM, ReduceOp.AVG, ReduceOp.MAX))
"""Whether the hash of a reduce op is its number, as in torch 2: the quickest way to learn it."""


Described = tuple[list[torch.Tensor], list[torch.Tensor], int, int, bool, int, bool]
"""A call: tensors whose shapes every rank must agree on; tensors that hold the result on this rank; root or peer, a
rank of the group, or -1; number in ``REDUCE_OPS``; whether the caller gets a handle; tag of a point-to-point call;
whether shapes may differ over the ranks. No class of its own: each call makes one."""


class Signature:
    """The kind of a method, and how to read its arguments; plain numbers and flags, since a call asks for them."""

    def __init__(self, kind: Kind, describe: Callable[[tuple[Any, ...], dict[str, Any], int], Described]) -> None:
        self.kind = int(kind)
        self.describe = describe
        self.is_transfer = kind in POINT_TO_POINT
        self.is_send = kind is Kind.SEND
        self.reduces = kind in (Kind.ALL_REDUCE, Kind.REDUCE, Kind.REDUCE_SCATTER)
        self.is_named = self.reduces or kind in (Kind.BROADCAST, Kind.ALL_GATHER)


def _list(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [item for item in value if isinstance(item, torch.Tensor)]


def _flat(value: Any) -> list[torch.Tensor]:
    if value is None:  # a gather, on a rank that is not its root
        return []
    if isinstance(value, torch.Tensor):
        return [value]
    found: list[torch.Tensor] = []
    for item in value:
        found += [item] if isinstance(item, torch.Tensor) else _list(item)
    return found


def _argument(args: tuple[Any, ...], kwargs: dict[str, Any], index: int, *names: str) -> Any:
    if len(args) > index:
        return args[index]
    return next((kwargs[name] for name in names if name in kwargs), None)


def _reduce_op(options: Any) -> int:
    op = getattr(options, "reduceOp", options)
    if op is None:
        return _SUM
    # REDUCE_OPS has the order of torch's own enumeration, after "".
    return (hash(op) if _IS_OWN_HASH else int(getattr(op, "op", op).value)) + 1


def _is_async(options: Any) -> bool:
    return bool(getattr(options, "asyncOp", False))


def _in_place(args: tuple[Any, ...], kwargs: dict[str, Any], rank: int) -> Described:
    if len(args) == 2 and type(args[0]) is list and _IS_OWN_HASH:  # as torch's own functions call it
        tensors, options = args
        return tensors, tensors, -1, hash(options.reduceOp) + 1, options.asyncOp, 0, False
    tensors = _list(_argument(args, kwargs, 0, "tensors", "tensor"))
    options = _argument(args, kwargs, 1, "opts", "op")
    return tensors, tensors, -1, _reduce_op(options), _is_async(options), 0, False


def _rooted(args: tuple[Any, ...], kwargs: dict[str, Any], rank: int) -> Described:
    tensors = _list(_argument(args, kwargs, 0, "tensors", "tensor"))
    options = _argument(args, kwargs, 1, "opts", "root")
    root = int(getattr(options, "rootRank", options if isinstance(options, int) else 0))
    return tensors, [] if root == rank else tensors, root, 0, _is_async(options), 0, False


def _reduced(args: tuple[Any, ...], kwargs: dict[str, Any], rank: int) -> Described:
    sent, _, root, _, is_async, _, _ = _rooted(args, kwargs, rank)
    op = _reduce_op(getattr(_argument(args, kwargs, 1, "opts"), "reduceOp", None))
    return sent, sent if root == rank else [], root, op, is_async, 0, False


def _gathered(args: tuple[Any, ...], kwargs: dict[str, Any], rank: int) -> Described:
    outputs = _flat(_argument(args, kwargs, 0, "output_tensors", "output_lists", "output", "outputs"))
    inputs = _flat(_argument(args, kwargs, 1, "input_tensors", "input_list", "input", "inputs", "input_tensor"))
    options = _argument(args, kwargs, 2, "opts")
    uneven = len({t.shape for t in outputs}) > 1 and len(outputs) > len(inputs)
    root = getattr(options, "rootRank", None)
    return inputs, outputs, -1 if root is None else int(root), 0, _is_async(options), 0, uneven


def _scattered(args: tuple[Any, ...], kwargs: dict[str, Any], rank: int) -> Described:
    outputs = _flat(_argument(args, kwargs, 0, "output_tensors", "output_tensor"))
    options = _argument(args, kwargs, 2, "opts", "root")
    root = int(getattr(options, "rootRank", options if isinstance(options, int) else 0))
    return outputs, outputs, root, 0, _is_async(options), 0, False


def _reduce_scattered(args: tuple[Any, ...], kwargs: dict[str, Any], rank: int) -> Described:
    outputs = _flat(_argument(args, kwargs, 0, "output_tensors", "outputTensor", "output", "outputs"))
    inputs = _flat(_argument(args, kwargs, 1, "input_tensors", "inputTensor", "input", "inputs"))
    options = _argument(args, kwargs, 2, "opts", "op")
    uneven = len({t.shape for t in inputs}) > 1 and len(inputs) > len(outputs)
    return inputs, outputs, -1, _reduce_op(options), _is_async(options), 0, uneven


def _exchanged(args: tuple[Any, ...], kwargs: dict[str, Any], rank: int) -> Described:
    outputs = _flat(_argument(args, kwargs, 0, "output_tensors", "output"))
    inputs = _flat(_argument(args, kwargs, 1, "input_tensors", "input"))
    options = args[-1] if args and hasattr(args[-1], "asyncOp") else kwargs.get("opts")
    return inputs, outputs, -1, 0, _is_async(options), 0, True


def _nothing(args: tuple[Any, ...], kwargs: dict[str, Any], rank: int) -> Described:
    return [], [], -1, 0, _is_async(_argument(args, kwargs, 0, "opts")), 0, False


def _sent(args: tuple[Any, ...], kwargs: dict[str, Any], rank: int) -> Described:
    tensors = _list(_argument(args, kwargs, 0, "tensors"))
    peer, tag = _argument(args, kwargs, 1, "dstRank", "srcRank"), _argument(args, kwargs, 2, "tag")
    return tensors, tensors, int(peer), 0, True, int(tag or 0), False


def _received_from_anybody(args: tuple[Any, ...], kwargs: dict[str, Any], rank: int) -> Described:
    tag = _argument(args, kwargs, 1, "tag")
    tensors = _list(args[0])
    return tensors, tensors, -1, 0, True, int(tag or 0), False


SIGNATURES = {
    "allreduce": Signature(Kind.ALL_REDUCE, _in_place),
    "allreduce_coalesced": Signature(Kind.ALL_REDUCE, _in_place),
    "broadcast": Signature(Kind.BROADCAST, _rooted),
    "reduce": Signature(Kind.REDUCE, _reduced),
    "allgather": Signature(Kind.ALL_GATHER, _gathered),
    "_allgather_base": Signature(Kind.ALL_GATHER, _gathered),
    "all_gather_single": Signature(Kind.ALL_GATHER, _gathered),
    "allgather_coalesced": Signature(Kind.ALL_GATHER, _gathered),
    "allgather_into_tensor_coalesced": Signature(Kind.ALL_GATHER, _gathered),
    "all_gather_single_coalesced": Signature(Kind.ALL_GATHER, _gathered),
    "gather": Signature(Kind.GATHER, _gathered),
    "scatter": Signature(Kind.SCATTER, _scattered),
    "reduce_scatter": Signature(Kind.REDUCE_SCATTER, _reduce_scattered),
    "_reduce_scatter_base": Signature(Kind.REDUCE_SCATTER, _reduce_scattered),
    "reduce_scatter_single": Signature(Kind.REDUCE_SCATTER, _reduce_scattered),
    "reduce_scatter_tensor_coalesced": Signature(Kind.REDUCE_SCATTER, _reduce_scattered),
    "reduce_scatter_single_coalesced": Signature(Kind.REDUCE_SCATTER, _reduce_scattered),
    "alltoall": Signature(Kind.ALL_TO_ALL, _exchanged),
    "alltoall_base": Signature(Kind.ALL_TO_ALL, _exchanged),
    "all_to_all_single": Signature(Kind.ALL_TO_ALL, _exchanged),
    "barrier": Signature(Kind.BARRIER, _nothing),
    "send": Signature(Kind.SEND, _sent),
    "recv": Signature(Kind.RECV, _sent),
    "recv_anysource": Signature(Kind.RECV, _received_from_anybody),
}
"""Method of a process group -> what it is."""
