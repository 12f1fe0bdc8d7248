"""Writing down a call before the backend sees it: the part of the recorder that every call pays for.

After a wait the caches and the branch predictor of a core belong to somebody else, so that what counts is how little is
run and touched, several times over. What does not change between the calls of one place is packed once, and copied;
only times, numbers and step are entered each time.
"""

import time
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch

from ddparity.trace._ring_format import (
    GAPS,
    HEAD,
    RECORD,
    RECORD_SIZE,
    RECORDS_AT,
    RING,
    CallFlag,
    Field,
)

from ._ring import Ring
from ._signatures import Described, Signature
from ._stacks import Site

if TYPE_CHECKING:
    from ._collectives import RecordedGroup
    from ._comm import CommWatch

_now = time.monotonic_ns
_num_modes = torch._C._len_torch_function_stack
_ASYNC, _NATIVE, _UNEVEN = int(CallFlag.ASYNC), int(CallFlag.NATIVE), int(CallFlag.UNEVEN)
_STRIDED = int(CallFlag.STRIDED)
_BACKWARD, _WAITED = int(CallFlag.BACKWARD), int(CallFlag.WAITED)
_MAX_FORMS = 512
"""Forms of calls that are kept a place: lengths of sequences may vary without end."""
_INT = 0xFFFFFFFF
_NOBODY: dict[int, int] = {}

# Words of 8 bytes within a record, and of the header.
ENTERED, LAUNCHED, DONE, COUNTED, WHEN, NAMED = 1, 2, 4, 6, 7, 12
_RECORDS = RECORDS_AT // 8
_WORDS = RECORD_SIZE // 8
_COUNT, ACTIVE = Field.NUM_RECORDS // 8, Field.ACTIVE // 8

Noted = tuple[memoryview, int, int, bool, Described]
"""A call that was written down: the words of the ring, the first of its record, its serial, whether it is asynchronous,
and the call."""


Form = tuple[bytes, int, int]
"""What the calls from one place with tensors alike have in common: a whole record, and of the words WHEN and NAMED what
stands beside step and name there."""


def enter(
    group: "RecordedGroup",
    signature: Signature,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    frame: FrameType,
    direct: bool,
    waits: bool,
) -> Noted | None:
    """Write down a call; return where, or None where nothing is recorded.

    It does without the guard's bookkeeping: no operation runs here.

    Args:
        group: The group.
        signature: How to read the arguments of its method.
        args: The arguments.
        kwargs: Those with a name.
        frame: Who calls.
        direct: Whether Python code called, and not C++ beneath it.
        waits: Whether the caller waits for a call that is not asynchronous, next.
    """
    watch = group.watch
    ring = watch.ring
    session = watch.session
    if ring is None or session.dead:
        return None
    try:
        if _num_modes():
            with torch._C.DisableTorchFunction():  # a tensor's shape is asked of a mode, too
                return _enter(watch, ring, group, signature, args, kwargs, frame, direct, waits)
        return _enter(watch, ring, group, signature, args, kwargs, frame, direct, waits)
    except Exception as error:
        session.disable(error)
        return None


def _enter(
    watch: "CommWatch",
    ring: Ring,
    group: "RecordedGroup",
    signature: Signature,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    frame: FrameType,
    direct: bool,
    waits: bool,
) -> Noted:
    described = signature.describe(args, kwargs, group.group_rank)
    sent, _, root, op, is_async, tag, uneven = described
    label = group.label_number if group.ring is ring else group.named_in(ring)
    try:
        (tensor,) = sent
        alike: Any = tensor.shape, tensor.dtype, tensor.stride()
    except (ValueError, RuntimeError):  # none, several, or one without strides
        alike = tuple([(tensor.shape, tensor.dtype, _strides(tensor)) for tensor in sent])
    site = watch.stacks.site(frame.f_back if waits else frame)  # who waits is a function of torch's
    waits = waits and not is_async
    key = (signature.kind, label, root, op, is_async, tag, direct, uneven, waits, watch.in_backward, alike)
    record, when, named = site.forms.get(key) or _form(ring, site, key, signature, described)
    if signature.is_transfer:
        group.num_transfers = seq = group.num_transfers + 1
    else:
        group.num_calls = seq = group.num_calls + 1
    serial = next(ring.serials)
    at = serial if serial < HEAD else HEAD + (serial - HEAD) % RING
    at = _RECORDS + _WORDS * at
    ring.memory[8 * at : 8 * at + RECORD_SIZE] = record
    words = ring.words
    words[at + COUNTED] = seq & _INT
    words[at + WHEN] = when | ((watch.session.step if watch.in_step else watch.session.step - 1) & _INT)
    if watch.names != _NOBODY and direct and signature.is_named and (number := watch.name_of(sent[0])):
        words[at + NAMED] = named | number << 32
    words[at + ENTERED] = words[ACTIVE] = _now()
    words[at] = words[_COUNT] = serial  # last, so that what has it is whole
    return words, at, serial, is_async, described


def _form(ring: Ring, site: Site, key: tuple[Any, ...], signature: Signature, described: Described) -> Form:
    """Pack what the calls of one form have in common."""
    tensors, _, root, op, is_async, tag, uneven = described
    label, direct, waits, backward = key[1], key[6], key[8], key[9]
    if site.numbers is None:
        site.numbers = (ring.string(site.stack), ring.string(site.origin), ring.string(site.argument))
    stack, origin, argument = site.numbers
    strided = any(t.layout == torch.strided and not t.is_contiguous() for t in tensors)
    dtype = ring.string("+".join(dict.fromkeys(str(t.dtype).removeprefix("torch.") for t in tensors)))
    shape = ring.string(";".join("x".join(map(str, t.shape)) or "scalar" for t in tensors)[:2000])
    strides = ";".join("x".join(map(str, t.stride())) for t in tensors)[:2000] if strided else ""
    layout = ring.string(f"{GAPS if any(_has_gaps(t) for t in tensors) else ''}{strides}")
    flags = (_ASYNC if is_async else 0) | (0 if direct else _NATIVE)
    flags |= (_UNEVEN if uneven else 0) | (_STRIDED if layout else 0)
    flags |= (_WAITED if waits else 0) | (_BACKWARD if backward else 0)
    numel = sum(t.numel() for t in tensors)
    num_bytes = sum(t.numel() * t.element_size() for t in tensors)
    head = (0, 0, 0, 0, 0, signature.kind, flags, label, 0, 0, 0, dtype, op if signature.reduces else 0, 0, root, tag)
    named = (shape, layout, 0, stack, origin, len(tensors), argument if direct else 0)
    record = RECORD.pack(*head, numel, num_bytes, *named, 0)
    if len(site.forms) >= _MAX_FORMS:
        site.forms.clear()
    found = site.forms[key] = (record, dtype << 32, layout)
    return found


def _strides(tensor: torch.Tensor) -> Any:
    return tensor.stride() if tensor.layout is torch.strided else ()


def _has_gaps(tensor: torch.Tensor) -> bool:
    """Whether a tensor's elements do not fill a block of memory, or share elements."""
    if tensor.layout != torch.strided or tensor.numel() < 2:
        return False
    return sum((n - 1) * abs(s) for n, s in zip(tensor.shape, tensor.stride(), strict=True)) + 1 != tensor.numel()
