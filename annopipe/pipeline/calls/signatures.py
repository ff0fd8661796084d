"""What decides whether a prepared pipeline fits a call: structure, shapes, dtypes, and the values of constants."""

from collections import OrderedDict
from collections.abc import Hashable, Iterable
from typing import Any, Generic, TypeVar

import torch

from annopipe import pytrees
from annopipe.graphs.snapshots import HoldsTensorError, snapshot

__all__ = ["Recent", "key_of", "signature_text"]

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
_PLAIN = frozenset((type(None), bool, int, float, complex, str))


def key_of(value: Any) -> Hashable:
    """The key of an argument; made for every microbatch of every step, so tensors cost next to nothing.

    >>> key_of((torch.ones(2), 3)) == key_of((torch.zeros(2), 3)), key_of(3) == key_of(3.0)
    (True, False)
    """
    if isinstance(value, torch.Tensor):
        return value.dtype, value.shape, value.requires_grad
    kind = type(value)
    if kind is tuple or kind is list:
        return (kind, *map(key_of, value))
    if kind is dict:
        return (kind, tuple(value), *map(key_of, value.values()))
    if kind in _PLAIN:
        return kind, repr(value)
    leaves, spec = pytrees.tree_flatten(value)
    return (kind, _constant_text(value)) if spec.is_leaf() else (str(spec), *map(key_of, leaves))


def signature_text(value: Any) -> str:
    """The structure, shapes, dtypes and constants of arguments, for messages."""
    leaves, spec = pytrees.tree_flatten(value)
    kinds = [
        f"{leaf.dtype}{tuple(leaf.shape)}{leaf.requires_grad}"
        if isinstance(leaf, torch.Tensor)
        else _constant_text(leaf)
        for leaf in leaves
    ]
    return f"{spec} {kinds}"


def _constant_text(leaf: Any) -> str:
    """A constant in full, as the guards of a graph compare it; arrays print the same when they differ in the middle."""
    try:
        return repr(leaf) if isinstance(leaf, (bool, int, float, str, type(None))) else repr(snapshot(leaf))
    except HoldsTensorError:
        return repr(leaf)  # tracing refuses it


class Recent(Generic[K, V]):
    """The values of the last keys that were asked for; older ones are let go.

    >>> recent = Recent(2)
    >>> for key in "aab":
    ...     recent.put(key, key.upper())
    >>> recent.get("a"), recent.put("c", "C"), recent.get("b"), len(recent)
    ('A', None, None, 2)
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._values: OrderedDict[K, V] = OrderedDict()

    def get(self, key: K) -> V | None:
        """The value of a key, None when there is none."""
        found = self._values.get(key)
        if found is not None:
            self._values.move_to_end(key)
        return found

    def put(self, key: K, value: V) -> None:
        """Keep a value, and let go of the one that was not asked for for longest when there are too many."""
        self._values[key] = value
        self._values.move_to_end(key)
        if len(self._values) > self._size:
            self._values.popitem(last=False)

    def values(self) -> Iterable[V]:
        """All that is kept, what was not asked for for longest first."""
        return self._values.values()

    def __len__(self) -> int:
        return len(self._values)
