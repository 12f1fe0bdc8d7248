"""Where the user's code stands: the frames of a stack that are neither torch's nor ddparity's, with their loops."""

import ast
import dis
import functools
import itertools
import linecache
import os
import sys
import sysconfig
from types import CodeType, FrameType
from typing import Any

import torch

_TORCH = os.path.dirname(torch.__file__) + os.sep
_OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_STDLIB = sysconfig.get_paths()["stdlib"] + os.sep
_C10D = ("distributed_c10d.py", "c10d_logger.py", "_functional_collectives.py", "_ops.py")
_SITE = (os.sep + "site-packages" + os.sep, os.sep + "dist-packages" + os.sep)
_MAX_USER = 12
_WALK = range(100)
_ORIGIN = 0
"""In a key, before torch's own function that made the call."""
_MAX_ARGUMENT = 60
_USER, _LIBRARY, _PLUMBING = 1, 2, 3


class Site:
    """One place of a call: the user's frames, one a line, innermost first; torch's frame next to it; the argument.

    Attributes:
        numbers: Where the ring has these texts, once it has.
        forms: What the calls from here have in common, by what they are called with.
    """

    __slots__ = ("argument", "forms", "numbers", "origin", "stack")

    def __init__(self, stack: str, origin: str, argument: str) -> None:
        self.stack = stack
        self.origin = origin
        self.argument = argument
        self.numbers: tuple[int, int, int] | None = None
        self.forms: dict[Any, Any] = {}


class Stacks:
    """Turns stacks into texts, each only once: a call that comes back costs a look into a dictionary a frame."""

    def __init__(self) -> None:
        self._codes: dict[int, CodeType] = {}
        self._kinds: dict[int, int] = {}
        self._sites: dict[tuple[int, ...], Site] = {}

    def site(self, frame: FrameType | None) -> Site:
        """Return where a call comes from; a place that comes back is looked up frame by frame and made only once."""
        key: list[int] = []
        kinds = self._kinds
        for _ in _WALK:
            if frame is None:
                break
            code = frame.f_code
            number = id(code)
            kind = kinds.get(number) or self._look_at(code)
            if kind == _USER:
                key.append(number)
                key.append(frame.f_lasti)
                if len(key) >= 2 * _MAX_USER:
                    break
            elif kind == _LIBRARY and not key:
                key.append(_ORIGIN)
                key.append(number)
            frame = frame.f_back
        found = tuple(key)
        return self._sites.get(found) or self._make(found)

    def _make(self, key: tuple[int, ...]) -> Site:
        pairs = list(zip(key[::2], key[1::2], strict=True))
        origin = _short(self._codes[pairs[0][1]]) if pairs and pairs[0][0] == _ORIGIN else ""
        frames = [(self._codes[code], at) for code, at in pairs if code != _ORIGIN]
        argument = _argument_at(*frames[0]) if frames and not origin else ""
        site = self._sites[key] = Site("\n".join(_frame_text(code, at) for code, at in frames), origin, argument)
        return site

    def uncached(self, frame: FrameType | None) -> list[str]:
        """Return the user's frames, innermost first; for stacks that may stand anywhere, so that none is kept."""
        found: list[str] = []
        while frame is not None and len(found) < _MAX_USER:
            code = frame.f_code
            if (self._kinds.get(id(code)) or self._look_at(code)) == _USER:
                found.append(_frame_text(code, frame.f_lasti))
            frame = frame.f_back
        return found

    def _look_at(self, code: CodeType) -> int:
        self._codes[id(code)] = code  # so that its id stays its own
        kind = self._kinds[id(code)] = _kind_of(code.co_filename)
        return kind


def is_user_code(code: CodeType) -> bool:
    """Whether a function is neither torch's, nor the standard library's, nor another installed library's, nor ours."""
    path = code.co_filename
    return _kind_of(path) == _USER and not any(part in path for part in _SITE)


def caller(depth: int) -> FrameType | None:
    """Return the frame ``depth`` above the caller's."""
    try:
        return sys._getframe(depth + 1)
    except ValueError:
        return None


def full_stack(frame: FrameType | None, limit: int = 40) -> list[str]:
    """Return every frame of a stack as ``file:line in function``, innermost first, without locals."""
    found: list[str] = []
    while frame is not None and len(found) < limit:
        if not frame.f_code.co_filename.startswith(_OWN):
            found.append(f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}")
        frame = frame.f_back
    return found


def _kind_of(path: str) -> int:
    if path.startswith(_TORCH):
        return _PLUMBING if path.endswith(_C10D) else _LIBRARY
    if path.startswith((_OWN, "<frozen")):
        return _PLUMBING
    if path.startswith(_STDLIB) and not any(part in path for part in _SITE):
        return _PLUMBING
    return _USER


def _short(code: CodeType) -> str:
    path = code.co_filename
    return f"{path.removeprefix(_TORCH)}:{code.co_name}"


def _frame_text(code: CodeType, at: int) -> str:
    line = _line_of(code, at)
    around = list(dict.fromkeys(line for start, end, line in _loops_of(code) if start <= at <= end))
    text = f"{code.co_filename}:{line} in {code.co_name}"
    return f"{text} @{','.join(map(str, around))}" if around else text


def _line_of(code: CodeType, at: int) -> int:
    found = code.co_firstlineno
    for start, end, line in code.co_lines():
        if start <= at < end and line is not None:
            found = line
    return found


def _argument_at(code: CodeType, at: int) -> str:
    line, end, first, last = next(itertools.islice(code.co_positions(), at // 2, None), (None,) * 4)
    if line is None or line != end or first is None or last is None:
        return ""
    source = linecache.getline(code.co_filename, line).encode()[first:last].decode(errors="replace")
    try:
        call = ast.parse(source.strip(), mode="eval").body
    except (SyntaxError, ValueError):
        return ""
    return ast.unparse(call.args[0])[:_MAX_ARGUMENT] if isinstance(call, ast.Call) and call.args else ""


@functools.lru_cache(maxsize=1024)
def _loops_of(code: CodeType) -> list[tuple[int, int, int]]:
    """Return the loops of a function, outermost first, as first and last instruction and line: backward jumps."""
    ends: dict[int, int] = {}
    for step in dis.get_instructions(code):
        if step.opname.startswith(("JUMP_BACKWARD", "POP_JUMP_BACKWARD")) and isinstance(step.argval, int):
            ends[step.argval] = max(step.offset, ends.get(step.argval, 0))
    return [(start, end, _line_of(code, start)) for start, end in sorted(ends.items())]
