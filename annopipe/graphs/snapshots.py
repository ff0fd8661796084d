"""Snapshots of Python values, to tell later whether they are still what they were.

Numbers, texts, arrays, containers and plain objects are compared by what they hold, however deep; functions, classes,
enumerations and handles such as process groups by identity. A value that holds a tensor or a module has no snapshot:
what these contain is no constant.
"""

import collections
import enum
import functools
import sys
import types
import weakref
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

__all__ = ["HoldsTensorError", "object_state", "snapshot"]

_BY_VALUE = (bool, int, str, bytes, range, type(None), torch.dtype, torch.device, torch.layout, torch.Size)
_BY_IDENTITY = (type, enum.Enum, types.FunctionType, types.BuiltinFunctionType, types.ModuleType, weakref.ref)
_SEQUENCES = (list, tuple, collections.deque)


class HoldsTensorError(Exception):
    """A value that is to be compared by content holds a tensor or a module; ``path`` says where, from the value on."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


def snapshot(value: Any) -> Any:
    """What ``value`` is made of, for comparing with ``==``.

    Raises:
        HoldsTensorError: it holds a tensor or a module.

    >>> snapshot([1, float("nan")]) == snapshot([1, float("nan")])
    True
    >>> snapshot(0.0) == snapshot(-0.0), snapshot(1) == snapshot(True)
    (False, False)
    """
    return _snapshot(value, "", {})


def object_state(value: Any) -> dict[str, Any]:
    """The attributes of a plain object: those in its ``__dict__`` and those in slots."""
    state = dict(getattr(value, "__dict__", {}))
    for cls in type(value).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        for name in [slots] if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                state[name] = getattr(value, name)
    return state


def _snapshot(value: Any, path: str, seen: dict[int, int]) -> Any:
    if isinstance(value, (torch.Tensor, nn.Module)):
        raise HoldsTensorError(path)
    if isinstance(value, _BY_VALUE):
        return type(value), value
    if isinstance(value, float):
        return type(value), value.hex()
    if isinstance(value, complex):
        return type(value), value.real.hex(), value.imag.hex()
    if isinstance(value, _BY_IDENTITY) or type(value).__module__.split(".")[0] == "torch":
        return "is", id(value), value  # kept, so that nothing else gets its id
    if (numpy := sys.modules.get("numpy")) and isinstance(value, (numpy.ndarray, numpy.generic)):
        return type(value), value.dtype.str, value.shape, value.tolist() if value.dtype == object else value.tobytes()
    if id(value) in seen:  # an object that holds itself: the same place in the walk
        return "seen", seen[id(value)]
    seen[id(value)] = len(seen)
    return type(value), *_parts(value, path, seen)


def _parts(value: Any, path: str, seen: dict[int, int]) -> list[Any]:
    state = object_state(value)
    parts = [(name, _snapshot(item, f"{path}.{name}", seen)) for name, item in state.items()]
    if isinstance(value, Mapping):
        pairs = [(_snapshot(k, path, seen), _snapshot(v, f"{path}[{k!r}]", seen)) for k, v in value.items()]
        return [*parts, *pairs]
    if isinstance(value, _SEQUENCES):
        return [*parts, *(_snapshot(item, f"{path}[{index}]", seen) for index, item in enumerate(value))]
    if isinstance(value, (set, frozenset)):
        return [*parts, frozenset(_snapshot(item, path, seen) for item in value)]
    if isinstance(value, functools.partial):
        return [*parts, *(_snapshot(v, path, seen) for v in (value.func, value.args, value.keywords))]
    if isinstance(value, types.MethodType):
        return [_snapshot(value.__func__, path, seen), _snapshot(value.__self__, path, seen)]
    if isinstance(value, slice):
        return [_snapshot(v, path, seen) for v in (value.start, value.stop, value.step)]
    return parts if state or hasattr(value, "__dict__") else [value]  # what has no attributes compares by its own ==
