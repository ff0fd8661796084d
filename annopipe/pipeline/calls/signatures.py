"""What decides whether a prepared pipeline fits a call: structure, shapes, dtypes, and the values of constants."""

import warnings
from collections import OrderedDict
from collections.abc import Hashable, Mapping
from typing import Any, Generic, TypeVar

import torch

from annopipe import pytrees
from annopipe.pipeline.calls.microbatches import constant_text

__all__ = ["Recent", "Retraces", "key_of"]

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
_PLAIN = frozenset((type(None), bool, int, float, complex, str))
_FEW = 4  # values of one constant that are nothing to warn about
_SHOWN = 3


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
    return (kind, constant_text(value)) if spec.is_leaf() else (str(spec), *map(key_of, leaves))


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

    def clear(self) -> None:
        """Let go of all."""
        self._values.clear()

    def __len__(self) -> int:
        return len(self._values)


class Retraces:
    """Warns of constants that are another value again and again, each of which is traced and planned for itself."""

    def __init__(self, size: int) -> None:
        self._seen: Recent[Hashable, dict[str, list[str]]] = Recent(size)
        self._told: set[str] = set()

    def note(self, arguments: Mapping[str, Any], around: Hashable) -> None:
        """Take down that a pipeline is prepared.

        Args:
            arguments: of the call, by name.
            around: what else decides.
        """
        rest = key_of(pytrees.tree_map(lambda leaf: leaf if isinstance(leaf, torch.Tensor) else None, arguments))
        seen = self._seen.get((around, rest)) or {}
        self._seen.put((around, rest), seen)
        for name, value in arguments.items():
            for path, leaf in zip(pytrees.leaf_paths(value, name), pytrees.tree_leaves(value), strict=True):
                if not isinstance(leaf, torch.Tensor) and path not in self._told:
                    self._take_down(path, repr(leaf), seen.setdefault(path, []))

    def _take_down(self, path: str, text: str, values: list[str]) -> None:
        if text not in values:
            values.append(text)
        if len(values) > _FEW:
            self._told.add(path)
            found = ", ".join(value if len(value) <= 40 else f"{value[:30]}..." for value in values[-_SHOWN:])
            warnings.warn(
                f"{path} has had {len(values)} values, the last ones {found}, and the pipeline was traced again for "
                "each: a number or text is a constant of the graphs; pass it as a tensor, one that batch_dims gives to "
                "every microbatch whole",
                stacklevel=8,  # the line that calls step
            )
