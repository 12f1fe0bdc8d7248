"""Which of the user's variables hold tensors, arrays and graphs: a census of what is reachable from them.

It walks from the local and global variables of the frames that stand on the stack, and from the models, through
containers, objects and closures, and adds up what each path holds. It is made only where memory is seen to rise, twice,
so that what it costs (a fraction of a second, bounded) is paid by runs that leak.
"""

import dis
import inspect
import sys
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch

from ._stacks import is_user_code

_MAX_OBJECTS, _MAX_NODES, _MAX_SECONDS, _MAX_DEPTH = 300_000, 100_000, 0.5, 8
_MAX_FRAMES = 60
_MAX_CODES = 400
_MAX_HOLDERS = 5
_ATOMS = (str, bytes, int, float, complex, bool, type(None), type, ModuleType, CodeType, FrameType, range, slice)
_CONTAINERS = (list, tuple, set, frozenset, deque)
_PUTS = frozenset({"append", "appendleft", "extend", "add", "update", "insert", "setdefault", "put"})
_STORES = frozenset({"STORE_FAST", "STORE_NAME", "STORE_GLOBAL", "STORE_ATTR", "STORE_DEREF"})
_REFLECTION = frozenset({"locals", "vars", "eval", "exec", "dir", "_getframe", "currentframe"})
_LOADS = frozenset({"LOAD_FAST", "LOAD_NAME", "LOAD_GLOBAL", "LOAD_ATTR", "LOAD_DEREF", "LOAD_METHOD"})


@dataclass
class Held:
    """What one path holds."""

    bytes: int = 0
    tensors: int = 0
    nodes: int = 0
    kind: str = ""
    function: str = ""


@dataclass
class Census:
    """What each path holds, and the code among which the lines that put it there are looked for."""

    paths: dict[str, Held] = field(default_factory=dict)
    codes: dict[int, CodeType] = field(default_factory=dict)


def census(models: list[tuple[str, Any]]) -> Census:
    """Add up what the user's variables and the models hold."""
    found = Census()
    walk = _Walk(found)
    for function, name, value in _variables(found):
        walk.begin(name, value, function)
    for name, model in models:
        walk.begin(name, model, "")
    walk.run()
    return found


def compare(before: Census, after: Census, num_steps: int) -> list[dict[str, Any]]:
    """Return the paths that hold more than before, the largest growth first."""
    grown = []
    for path, now in after.paths.items():
        was = before.paths.get(path, Held())
        more = now.bytes - was.bytes, now.nodes - was.nodes, now.tensors - was.tensors
        if more[1] >= num_steps or more[2] >= num_steps or (was.bytes and more[0] > was.bytes // 8):
            grown.append((*more, path, now))
    # A chain of graph nodes holds what its nodes saved, which no variable shows; containers hold what they hold.
    grown.sort(key=lambda each: (each[0], each[1]), reverse=True)
    return [
        {
            "name": path,
            "function": now.function,
            "of": now.kind,
            "bytes": more_bytes // num_steps,
            "nodes": more_nodes // num_steps,
            "tensors": more_tensors // num_steps,
            "lines": lines_of(path, after.codes),
        }
        for more_bytes, more_nodes, more_tensors, path, now in grown[:_MAX_HOLDERS]
    ]


def _variables(found: Census) -> Iterator[tuple[str, str, Any]]:
    """Yield function, name and value of the variables of the user's frames, innermost first, then the globals."""
    frame: FrameType | None = sys._getframe(1)
    everywhere: dict[int, tuple[str, dict[str, Any]]] = {}
    for _ in range(_MAX_FRAMES):
        if frame is None:
            break
        code = frame.f_code
        if is_user_code(code):
            found.codes[id(code)] = code
            everywhere[id(frame.f_globals)] = Path(code.co_filename).name, frame.f_globals
            yield from ((code.co_name, name, value) for name, value in _locals_of(frame))
        frame = frame.f_back
    for file, variables in everywhere.values():
        for name, value in list(variables.items()):
            if not name.startswith("__"):
                yield file, name, value


def _locals_of(frame: FrameType) -> list[tuple[str, Any]]:
    """Return the variables of a running function, but not of one that looks at them as a dictionary itself."""
    code = frame.f_code
    if not code.co_flags & inspect.CO_OPTIMIZED or _REFLECTION.intersection(code.co_names):
        return []
    held = frame.f_locals
    variables = list(held.items())
    if isinstance(held, dict):  # a copy (before Python 3.13), which would keep alive what it holds
        held.clear()
    return variables


class _Walk:
    """Goes through objects breadth first, so that a thing belongs to the shortest path that leads to it."""

    def __init__(self, found: Census) -> None:
        self._found = found
        self._seen: set[int] = set()
        self._storages: set[int] = set()
        self._nodes: set[Any] = set()
        self._queue: deque[tuple[Any, str, int]] = deque()
        self._functions: dict[str, str] = {}
        self._kept: list[Any] = []

    def begin(self, name: str, value: Any, function: str) -> None:
        """Take in a variable."""
        if not isinstance(value, _ATOMS):
            self._functions.setdefault(name, function)
            self._queue.append((value, name, 0))

    def run(self) -> None:
        """Go on until everything was seen, or a limit was reached."""
        until = time.monotonic() + _MAX_SECONDS
        count = 0
        while self._queue and count < _MAX_OBJECTS and (count % 256 or time.monotonic() < until):
            count += 1
            value, path, depth = self._queue.popleft()
            if id(value) in self._seen:
                continue
            self._seen.add(id(value))
            self._visit(value, path, depth)

    def _visit(self, value: Any, path: str, depth: int) -> None:
        if isinstance(value, torch.Tensor):
            self._tensor(value, path)
        elif isinstance(value, np.ndarray):
            self._count(path, value.nbytes if value.base is None else 0, "array")
        elif depth < _MAX_DEPTH:
            for name, inner in self._inner(value):
                if not isinstance(inner, _ATOMS):
                    self._queue.append((inner, f"{path}.{name}" if name else path, depth + 1))

    def _inner(self, value: Any) -> Iterator[tuple[str, Any]]:
        """Yield what an object holds, with the name by which it is reached where it has one."""
        kind = type(value)
        if isinstance(value, dict):
            yield from (("", inner) for inner in list(value.values()))
        elif isinstance(value, _CONTAINERS):
            yield from (("", inner) for inner in list(value))
        elif isinstance(value, FunctionType):
            if is_user_code(value.__code__):
                self._code(value)
                names = value.__code__.co_freevars
                for name, cell in zip(names, value.__closure__ or (), strict=False):
                    try:
                        yield f"<{name}>", cell.cell_contents
                    except ValueError:  # not bound yet
                        continue
                yield from (("<default>", inner) for inner in value.__defaults__ or ())
        elif isinstance(value, MethodType):
            yield from (("", value.__self__), ("", value.__func__))
        elif not kind.__module__.startswith("ddparity"):
            yield from self._attributes(value, kind)

    def _attributes(self, value: Any, kind: type) -> Iterator[tuple[str, Any]]:
        held = getattr(value, "__dict__", None)
        if not isinstance(held, dict):
            return
        for function in vars(kind).values():
            if isinstance(function, FunctionType) and is_user_code(function.__code__):
                self._code(function)
        hidden = ("_parameters", "_buffers", "_modules")
        for name, inner in list(held.items()):
            if name in hidden and isinstance(inner, dict):
                yield from ((str(key), each) for key, each in inner.items())
            else:
                yield name, inner

    def _code(self, function: FunctionType) -> None:
        if len(self._found.codes) < _MAX_CODES:
            self._found.codes[id(function.__code__)] = function.__code__

    def _tensor(self, tensor: torch.Tensor, path: str) -> None:
        storage = 0
        if tensor.layout == torch.strided and type(tensor) in (torch.Tensor, torch.nn.Parameter):
            memory = tensor.untyped_storage()
            if memory.data_ptr() not in self._storages:
                self._storages.add(memory.data_ptr())
                storage = memory.nbytes()
        held = self._count(path, storage, "tensor")
        if tensor.grad_fn is not None:
            held.nodes += self._graph(tensor.grad_fn)
        if isinstance(tensor.grad, torch.Tensor):
            self._queue.append((tensor.grad, f"{path}.grad", 0))

    def _graph(self, node: Any) -> int:
        """Return how many nodes hang on a tensor that hang on none before."""
        count, waiting = 0, [node]
        while waiting and len(self._nodes) < _MAX_NODES:
            node = waiting.pop()
            if node in self._nodes:
                continue
            self._nodes.add(node)
            count += 1
            waiting += [inner for inner, _ in node.next_functions if inner is not None]
        return count

    def _count(self, path: str, num_bytes: int, kind: str) -> Held:
        held = self._found.paths.setdefault(path, Held(kind=kind, function=self._functions.get(path.split(".")[0], "")))
        held.bytes += num_bytes
        held.tensors += 1
        return held


def lines_of(path: str, codes: dict[int, CodeType]) -> list[str]:
    """Return where something is put into the variable or attribute that a path ends in, ``file.py:line``."""
    name = path.rpartition(".")[2].strip("<>")
    put: list[str] = []
    stored: list[str] = []
    for code in codes.values():
        for where, is_put in _writes(code, name):
            (put if is_put else stored).append(where)
    return list(dict.fromkeys(put or stored))[:4]


def _writes(code: CodeType, name: str) -> Iterator[tuple[str, bool]]:
    """Yield the lines of a function that put something into a container of this name, or bind the name anew."""
    line, loaded = code.co_firstlineno, False
    loops = [(step.argval, step.offset) for step in dis.get_instructions(code) if "BACKWARD" in step.opname]
    for step in dis.get_instructions(code):
        if step.starts_line is not None:
            if step.starts_line != line:
                loaded = False
            line = step.starts_line
        where = f"{Path(code.co_filename).name}:{line}"
        if step.opname in _LOADS and step.argval == name:
            loaded = True
        elif loaded and ((step.opname in _LOADS and step.argval in _PUTS) or step.opname == "STORE_SUBSCR"):
            yield where, True
        elif step.opname in _STORES and step.argval == name:
            inside = any(start <= step.offset <= end for start, end in loops if isinstance(start, int))
            yield where, inside
