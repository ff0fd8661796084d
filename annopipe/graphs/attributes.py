"""Find what a forward changes on its module and on the plain objects that the module holds, and put it back.

A graph replays tensor operations only. A value that forward keeps on ``self`` (a counter, the splits of a dispatch, a
list that grows) would be lost or frozen, and two microbatches in flight would share it, so tracing has to know.
"""

import collections
import random
import types
import weakref
from typing import Any

import torch
from torch import nn

from annopipe.graphs.snapshots import HoldsTensorError, object_state, snapshot

__all__ = ["SideEffects"]

_LEAVES = (bool, int, float, complex, str, bytes, type(None), torch.Tensor)
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType, property)
_METHODS = (*_FUNCTIONS, classmethod, staticmethod)
_CONTAINERS = (dict, list, set, collections.deque)
_SKIPPED_PACKAGES = ("torch", "builtins", "logging", "threading", "types")


class SideEffects:
    """A snapshot of every attribute reachable from a module, to compare with after its forward has run.

    >>> module = nn.Linear(2, 2)
    >>> before = SideEffects(module)
    >>> module.calls = 1
    >>> before.restore()
    ['calls']
    """

    def __init__(self, module: nn.Module) -> None:
        self._seen: dict[int, tuple[str, Any, Any]] = {}  # by id: path, object, copy of what it held
        self._own = {id(t) for t in (*module.parameters(), *module.buffers())}
        for name, child in module.named_modules():
            self._walk(name, child)
        for cls in dict.fromkeys(cls for child in module.modules() for cls in type(child).__mro__):
            if cls.__module__.split(".")[0] not in _SKIPPED_PACKAGES:
                self._walk(cls.__name__, cls)

    def sees(self, target: Any) -> bool:
        """Whether changes of an object would be noticed."""
        return id(target) in self._seen

    def restore(self) -> list[str]:
        """Put everything back as it was; returns the dotted paths that had changed.

        What a module keeps of its own parameters (``nn.LSTM`` lists them anew when they were moved) is put back, too,
        but not told: it holds no value of the run.
        """
        changed: list[str] = []
        for path, target, before in self._seen.values():
            now = _contents(target)
            told: list[Any] = []
            silent: list[Any] = []
            for key in [*before, *(key for key in now if key not in before)]:
                if not (key in now and key in before and _same(now[key], before[key])):
                    (silent if self._holds_parameters_only(now.get(key)) else told).append(key)
            changed += [_join(path, key, target) for key in told]
            if told or silent:
                _reset(target, before)
        return sorted(dict.fromkeys(changed))

    def _holds_parameters_only(self, value: Any) -> bool:
        items = value if isinstance(value, (list, tuple)) else [value]
        found = [item() if isinstance(item, weakref.ref) else item for item in items]
        return any(t is not None for t in found) and all(t is None or id(t) in self._own for t in found)

    def _walk(self, path: str, value: Any) -> None:
        pending = [(path, value)]
        while pending:
            path, value = pending.pop()
            if id(value) in self._seen or not _has_contents(value):
                continue
            contents = _contents(value)
            self._seen[id(value)] = (path, value, contents)
            if _has_inner_state(value):
                continue  # what these hold is a copy, and a new one each time
            for key, item in contents.items():
                if not isinstance(value, nn.Module) or key not in ("_parameters", "_buffers", "_modules"):
                    pending.append((_join(path, key, value), item))
                elif id(item) not in self._seen:  # their items are parameters and modules of the same path
                    self._seen[id(item)] = (path, item, _contents(item))


def _has_contents(value: Any) -> bool:
    if isinstance(value, (nn.Module, tuple, *_CONTAINERS)) or _has_inner_state(value):
        return True
    if isinstance(value, type):
        return issubclass(value, nn.Module)
    if isinstance(value, (*_LEAVES, *_FUNCTIONS)) or type(value).__module__.split(".")[0] in _SKIPPED_PACKAGES:
        return False
    return bool(object_state(value)) or hasattr(value, "__dict__")


def _has_inner_state(value: Any) -> bool:
    """Whether the value keeps state outside of attributes, of which ``_contents`` makes a copy: arrays, generators."""
    return isinstance(value, random.Random) or _is_numpy(value, "ndarray", "Generator")


def _contents(value: Any) -> dict[Any, Any]:
    """What an object holds, as a new dictionary: attributes, items, or members of a set."""
    if isinstance(value, dict):
        return dict(value)
    if isinstance(value, set):
        return dict.fromkeys(value)
    if isinstance(value, (list, tuple, collections.deque)):
        return dict(enumerate(value))
    if isinstance(value, random.Random):
        return {"": value.getstate()}
    if _is_numpy(value, "Generator"):
        return {"": value.bit_generator.state}
    if _is_numpy(value, "ndarray"):
        return {"": value.copy()}
    if isinstance(value, type):
        return {k: v for k, v in vars(value).items() if not k.startswith("__") and not isinstance(v, _METHODS)}
    state = object_state(value)
    if isinstance(value, nn.Module):
        state.pop("training", None)  # modes that a forward switches are put back elsewhere
    return state


def _reset(target: Any, before: dict[Any, Any]) -> None:
    if isinstance(target, (dict, set)):
        target.clear()
        target.update(before)
    elif isinstance(target, (list, collections.deque)):
        target.clear()
        target.extend(before.values())
    elif isinstance(target, random.Random):
        target.setstate(before[""])
    elif _is_numpy(target, "Generator"):
        target.bit_generator.state = before[""]
    elif _is_numpy(target, "ndarray"):
        target[...] = before[""]
    else:
        owner = type if isinstance(target, type) else object
        now = _contents(target)
        for key in now.keys() - before.keys():
            owner.__delattr__(target, key)
        for key, value in before.items():
            if key not in now or now[key] is not value:
                owner.__setattr__(target, key, value)


def _join(path: str, key: Any, owner: Any) -> str:
    """The path of an attribute or item; items of lists, sets and arrays go by the name of their container."""
    if not isinstance(owner, dict) and not hasattr(owner, "__dict__"):
        return path
    text = f"[{key!r}]" if isinstance(owner, dict) and not isinstance(key, str) else str(key)
    return f"{path}.{text}" if path and text else path or text


def _same(a: Any, b: Any) -> bool:
    if a is b:
        return True
    try:
        return bool(snapshot(a) == snapshot(b))
    except (HoldsTensorError, TypeError, ValueError):
        return False


def _is_numpy(value: Any, *names: str) -> bool:
    kind = type(value)
    return kind.__module__.split(".")[0] == "numpy" and any(cls.__name__ in names for cls in kind.__mro__)
