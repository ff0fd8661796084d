"""What a stage's forward or a loss may read in Python: the graphs hold for these values only.

Parameters, buffers, arguments and modes are looked at elsewhere. This is the rest that a training loop changes between
steps: a number on a module, a hook, another activation in the place of one, a weight in the closure of a loss.
"""

import argparse
import collections
import dataclasses
import enum
import functools
import types
import weakref
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from annopipe.pipeline.calls.module_state import ModuleState, state_of

__all__ = ["PythonValues", "changed_names", "loss_values", "python_values"]

# By name: what is compared, as text. What is told apart by identity is in it itself, so that nothing else gets its id.
PythonValues = dict[str, Any]

_PLAIN = (bool, int, float, complex, str, bytes, type(None), enum.Enum, torch.dtype, torch.device, torch.Size, range)
_SEQUENCES = (list, tuple, collections.deque)
_RECORDS = (types.SimpleNamespace, argparse.Namespace)
_SIMPLE = frozenset((bool, int, float, str, type(None)))
# What every module has, but for hooks: looked at elsewhere, or not read by a forward.
_ELSEWHERE = frozenset(name for name in vars(nn.Module()) if "hooks" not in name)
_DEPTH = 4
_LONGEST = 1000  # items of a container that are looked at before every step


class _Same:
    """A value that is compared by identity."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __repr__(self) -> str:
        return f"{type(self._value).__name__}@{id(self._value)}"


def python_values(state: ModuleState) -> PythonValues:
    """The Python values of a module and its submodules, by dotted name.

    >>> python_values(state_of(nn.Dropout(0.1)))["p"]
    'float 0.1'
    """
    found: PythonValues = {}
    for prefix, child in state.modules:
        found[prefix] = _Same(type(child))
        for name, value in vars(child).items():
            if name not in _ELSEWHERE and not (isinstance(value, dict) and not value):  # mostly hooks that nobody has
                found[prefix + name] = _read(value, _DEPTH)
    for path, tensor in state.tensors.items():
        if tensor._backward_hooks or getattr(tensor, "_post_accumulate_grad_hooks", None):
            hooks = [tensor._backward_hooks, getattr(tensor, "_post_accumulate_grad_hooks", None)]
            found[f"the hooks of {path}"] = _read(hooks, _DEPTH)
    return found


def loss_values(loss_fn: Any) -> PythonValues:
    """The Python values of a loss: what it closes over, its defaults, the attributes of a module."""
    while isinstance(loss_fn, functools.partial) and not loss_fn.args and not loss_fn.keywords:
        loss_fn = loss_fn.func
    if isinstance(loss_fn, functools.partial):
        given = {"": _read([loss_fn.args, loss_fn.keywords], _DEPTH)}
        return {**_named(given, "arguments"), **loss_values(loss_fn.func)}
    if (inside := getattr(loss_fn, "__wrapped__", None)) is not None:
        return loss_values(inside)
    if isinstance(loss_fn, types.MethodType):
        return loss_values(loss_fn.__self__)
    if isinstance(loss_fn, nn.Module):
        state = state_of(loss_fn)
        tensors = {name: _Same(tensor) for name, tensor in state.tensors.items()}
        return _named({**python_values(state), **tensors}, "loss_fn")
    if not isinstance(loss_fn, types.FunctionType):
        return _named(
            {name: _read(value, _DEPTH) for name, value in getattr(loss_fn, "__dict__", {}).items()}, "loss_fn"
        )
    closed = zip(loss_fn.__code__.co_freevars, loss_fn.__closure__ or (), strict=True)
    found = {name: _read(_content(cell), _DEPTH) for name, cell in closed}
    found |= {"defaults": _read([loss_fn.__defaults__, loss_fn.__kwdefaults__], _DEPTH)}
    return _named(found, "loss_fn")


def changed_names(before: PythonValues, now: PythonValues) -> list[str]:
    """The names whose values differ.

    >>> changed_names({"p": 1, "q": 2}, {"p": 3, "q": 2})
    ['p']
    """
    return sorted(name for name in before.keys() | now.keys() if str(before.get(name)) != str(now.get(name)))


def _named(found: PythonValues, prefix: str) -> PythonValues:
    return {f"{prefix}.{name}".rstrip("."): value for name, value in found.items()}


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not yet assigned
        return None


def _read(value: Any, depth: int) -> Any:
    if type(value) in _SIMPLE or isinstance(value, _PLAIN):
        return f"{type(value).__name__} {value!r}"
    if isinstance(value, weakref.ref) or depth == 0:
        return type(value).__name__
    if isinstance(value, (*_SEQUENCES, Mapping, set, frozenset)) and len(value) > _LONGEST:
        return [_Same(value), len(value)]
    if isinstance(value, _SEQUENCES):
        return [type(value).__name__, *(_read(item, depth - 1) for item in value)]
    if isinstance(value, Mapping):
        return [type(value).__name__, *((_read(k, depth - 1), _read(v, depth - 1)) for k, v in value.items())]
    if isinstance(value, (set, frozenset)):
        return [type(value).__name__, *sorted(str(_read(item, depth - 1)) for item in value)]
    if isinstance(value, _RECORDS) or (dataclasses.is_dataclass(value) and not isinstance(value, type)):
        return [_Same(type(value)), _read(getattr(value, "__dict__", {}), depth - 1)]
    return _Same(value)
