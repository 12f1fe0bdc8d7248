"""What a pickle says, without letting it do anything: a foreign pickle is a program, and this runs none of it.

It knows the opcodes that build plain data (numbers, texts, lists, tuples, dictionaries) and refuses every other; no
name is ever looked up, so that nothing can be called. Size, number of opcodes and memo are bounded: ``pickle`` itself
takes gigabytes for a memo index of nine digits.
"""

import pickletools
from collections.abc import Callable
from typing import Any

from ddparity._errors import TraceError

MAX_BYTES = 64 << 20
_MAX_OPCODES = 8_000_000
_MARK = object()
_LITERAL = frozenset(
    {"BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE", "BINSTRING"}
    | {"SHORT_BINSTRING", "SHORT_BINBYTES", "BINBYTES"}
)
_MADE: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_LIST": list,
    "EMPTY_DICT": dict,
    "EMPTY_TUPLE": tuple,
}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_PUT, _GET = ("BINPUT", "LONG_BINPUT"), ("BINGET", "LONG_BINGET")
_NOTHING = frozenset({"PROTO", "FRAME"})


def plain_pickle(data: bytes) -> Any:
    """Return the plain data that a pickle holds.

    Raises:
        TraceError: If it is damaged or too large, or holds anything but plain data.
    """
    if len(data) > MAX_BYTES:
        raise TraceError(f"A pickle of {len(data)} bytes: at most {MAX_BYTES} are read.")
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    try:
        for number, (opcode, argument, _) in enumerate(pickletools.genops(data)):
            if number > _MAX_OPCODES:
                raise TraceError(f"A pickle of more than {_MAX_OPCODES} opcodes: no flight recorder writes that.")
            if opcode.name == "STOP":
                return stack.pop()
            _step(opcode.name, argument, stack, memo)
    except TraceError:
        raise
    except Exception as error:  # whatever a damaged file makes of the reader
        raise TraceError(f"A damaged pickle ({type(error).__name__}). Write the dump again.") from error
    raise TraceError("A pickle without an end. Write the dump again.")


def _step(name: str, argument: Any, stack: list[Any], memo: dict[int, Any]) -> None:
    if name in _LITERAL:
        stack.append(argument)
    elif name in _MADE:
        stack.append(_MADE[name]())
    elif name in _GET:
        stack.append(memo[argument])
    elif name in _PUT:
        memo[argument] = stack[-1]
    elif name == "MEMOIZE":
        memo[len(memo)] = stack[-1]
    elif name == "MARK":
        stack.append(_MARK)
    elif name in _TUPLES:
        count = _TUPLES[name]
        stack[-count:] = [tuple(stack[-count:])]
    elif name not in _NOTHING:
        _gather(name, stack)


def _gather(name: str, stack: list[Any]) -> None:
    """Put what stands above the last mark, or at the top, into what stands below it."""
    if name in ("APPEND", "SETITEM"):
        items = stack[-1:] if name == "APPEND" else stack[-2:]
        del stack[-len(items) :]
    elif name in ("APPENDS", "SETITEMS", "TUPLE", "LIST", "DICT"):
        at = len(stack) - 1 - stack[::-1].index(_MARK)
        items = stack[at + 1 :]
        del stack[at:]
    else:
        raise TraceError(f"A pickle with the opcode {name}, which does more than to hold data. It is not read.")
    if name in ("APPEND", "APPENDS"):
        stack[-1].extend(items)
    elif name in ("SETITEM", "SETITEMS"):
        stack[-1].update(zip(items[::2], items[1::2], strict=True))
    else:
        stack.append(tuple(items) if name == "TUPLE" else items if name == "LIST" else _paired(items))


def _paired(items: list[Any]) -> dict[Any, Any]:
    return dict(zip(items[::2], items[1::2], strict=True))
