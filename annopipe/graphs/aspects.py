"""What a capture reads of a Python value, so that the value can be compared later in that respect alone.

A branch on ``len(self.steps)`` holds for any list of that length, one on ``self.weight.dtype`` for any weight of it.
"""

import dataclasses
import reprlib
import types
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from annopipe.graphs.snapshots import HoldsTensorError, snapshot

__all__ = ["ASPECTS", "Aspect"]


@dataclasses.dataclass(frozen=True)
class Aspect:
    """What a capture read of a value: ``read(value, key)`` for comparing, ``told(value, key)`` for the message."""

    read: Callable[[Any, Any], Any]
    told: Callable[[Any, Any], str]


def _code(value: Any, _: Any) -> Any:
    function = getattr(value, "__func__", value)
    return "code", getattr(function, "__code__", function)


def _value(value: Any, _: Any) -> Any:
    if isinstance(value, (torch.Tensor, nn.Module)):
        return type(value)
    try:
        return snapshot(value)
    except HoldsTensorError:
        return type(value)


def _lookup(value: Any, key: Any) -> Any:
    """Whether an attribute is the object's own; else the method of its class, which may be replaced there."""
    found = getattr(type(value), key, None)
    return key in vars(value), _code(found, None) if callable(found) else None


def _tensor(value: Any, _: Any) -> Any:
    return _SameTensor(value) if isinstance(value, torch.Tensor) else type(value)


def _like(value: Any, _: Any) -> Any:
    return (value.dtype, value.shape, value.requires_grad) if isinstance(value, torch.Tensor) else type(value)


def _properties(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return reprlib.repr(value)
    grad = "requires grad" if value.requires_grad else "requires no grad"
    return f"of {value.dtype}, shape {tuple(value.shape)}, and {grad}"


def _repr(value: Any, _: Any) -> str:
    return value.__qualname__ if isinstance(value, (type, types.FunctionType)) else reprlib.repr(value)


ASPECTS: Mapping[str, Aspect] = {
    "value": Aspect(_value, _repr),
    "code": Aspect(_code, _repr),
    "type": Aspect(lambda v, _: type(v), lambda v, _: f"of type {type(v).__qualname__}"),
    "length": Aspect(lambda v, _: len(v), lambda v, _: f"of length {len(v)}"),
    "keys": Aspect(lambda v, _: [_value(k, None) for k in v], lambda v, _: f"with the keys {reprlib.repr(list(v))}"),
    "holds": Aspect(lambda v, key: key in v, lambda v, k: f"{'with' if k in v else 'without'} the key {k!r}"),
    "has": Aspect(hasattr, lambda v, k: f"{'with' if hasattr(v, k) else 'without'} the attribute {k}"),
    "own": Aspect(_lookup, lambda v, k: "the object's own" if k in vars(v) else "its class's"),
    "none": Aspect(lambda v, _: v is None, _repr),
    "like": Aspect(_like, lambda v, _: _properties(v)),
    "tensor": Aspect(_tensor, lambda v, _: f"{'a tensor' if isinstance(v, torch.Tensor) else reprlib.repr(v)}"),
}


class _SameTensor:
    """Compares equal to the same tensor, and to another one that holds the same."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _SameTensor):
            return False
        a, b = self._tensor, other._tensor
        if a is b:
            return True
        without_data = any(tensor.is_meta or hasattr(tensor, "fake_mode") for tensor in (a, b))
        if without_data or (a.shape, a.dtype, a.device) != (b.shape, b.dtype, b.device):
            return False
        return torch.equal(a, b)

    __hash__ = None  # type: ignore[assignment]
