"""Find what a forward changes on its module, its plain objects and the random generators, and put it back.

A graph replays tensor operations only. A value that forward keeps on ``self`` (a counter, the splits of a dispatch, a list that
grows) would be lost or frozen, and two microbatches in flight would share it, so tracing has to know.
"""

import collections
import contextlib
import random
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

__all__ = ["SideEffects", "untouched_random_state"]

_CONTAINERS = (list, dict, set, collections.deque)
_SKIPPED_MODULES = ("torch", "builtins", "numpy", "logging", "threading", "types")
_VALUES = (bool, int, float, complex, str, bytes, type(None))


class SideEffects:
    """A snapshot of every attribute reachable from a module, to compare with after its forward has run.

    >>> module = nn.Linear(2, 2)
    >>> before = SideEffects(module)
    >>> module.calls = 1
    >>> before.restore()
    ['calls']
    """

    def __init__(self, module: nn.Module) -> None:
        self._seen: dict[int, tuple[str, Any, Any]] = {}  # id -> path, object, shallow copy of its contents
        for name, child in module.named_modules(remove_duplicate=True):
            self._record(name, vars(child), child)
            for table in (child._parameters, child._buffers):
                self._seen[id(table)] = (name, table, dict(table))

    def restore(self) -> list[str]:
        """Put everything back as it was; returns the dotted paths that had changed."""
        changed: list[str] = []
        for path, target, contents in self._seen.values():
            differences = list(_differences(target, contents))
            changed += [f"{path}.{d}" if path and d else path or d for d in differences]
            if differences:
                _reset(target, contents)
        return sorted(dict.fromkeys(changed))

    def _record(self, path: str, attributes: dict[str, Any], owner: Any) -> None:
        kept = attributes
        if isinstance(owner, nn.Module):
            hidden = ("_parameters", "_buffers", "_modules", "training")
            kept = {k: v for k, v in attributes.items() if k not in hidden and not k.endswith("_hooks")}
        self._seen[id(attributes)] = (path, attributes, dict(attributes))
        for key, value in kept.items():
            self._walk(f"{path}.{key}" if path else key, value)

    def _walk(self, path: str, value: Any) -> None:
        if id(value) in self._seen or isinstance(value, (_VALUES, torch.Tensor, nn.Module, type)):
            return
        if isinstance(value, _CONTAINERS):
            self._seen[id(value)] = (path, value, value.copy())
            for index, item in value.items() if isinstance(value, dict) else enumerate(value):
                self._walk(f"{path}[{index!r}]", item)
        elif hasattr(value, "__dict__") and type(value).__module__.split(".")[0] not in _SKIPPED_MODULES:
            if id(vars(value)) not in self._seen and not callable(value):
                self._record(path, vars(value), value)


@contextlib.contextmanager
def untouched_random_state() -> Iterator[list[str]]:
    """Restore the CPU generators of torch, Python and numpy; yields a list that then names the frozen ones that moved.

    Torch's own draws become nodes; a draw from Python's or numpy's generator would be frozen into the graph.
    """
    moved: list[str] = []
    numpy_random = sys.modules.get("numpy.random")
    torch_state, python_state = torch.get_rng_state(), random.getstate()
    numpy_state = numpy_random.get_state() if numpy_random is not None else None
    try:
        yield moved
    finally:
        torch.set_rng_state(torch_state)
        if random.getstate() != python_state:
            moved.append("random")
            random.setstate(python_state)
        if numpy_random is not None and repr(numpy_random.get_state()) != repr(numpy_state):
            moved.append("numpy.random")
            numpy_random.set_state(numpy_state)


def _same(a: Any, b: Any) -> bool:
    return a is b or (type(a) is type(b) and isinstance(a, _VALUES) and bool(a == b))


def _differences(now: Any, before: Any) -> Iterator[str]:
    if isinstance(before, dict):
        for key in [*before, *(k for k in now if k not in before)]:
            if key not in now or key not in before or not _same(now[key], before[key]):
                yield str(key)
    elif isinstance(before, set):
        if now != before:
            yield ""
    elif len(now) != len(before) or not all(_same(a, b) for a, b in zip(now, before, strict=True)):
        yield ""


def _reset(target: Any, contents: Any) -> None:
    target.clear()
    if isinstance(target, (dict, set)):
        target.update(contents)
    else:
        target.extend(contents)
