"""Nested containers of values. Wraps ``torch.utils._pytree``, which PyTorch's own capture uses, so both see the same leaves."""

from typing import Any

from torch.utils._pytree import (
    TreeSpec,
    tree_flatten,
    tree_flatten_with_path,
    tree_leaves,
    tree_unflatten,
)

__all__ = ["TreeSpec", "leaf_paths", "tree_flatten", "tree_leaves", "tree_unflatten"]


def leaf_paths(tree: Any, name: str) -> list[str]:
    """A dotted path for every leaf of a tree, in flattening order; ``name`` itself for a single leaf.

    >>> leaf_paths({"hidden": 1, "masks": (2, 3)}, "state")
    ['state.hidden', 'state.masks.0', 'state.masks.1']
    """
    keyed, _ = tree_flatten_with_path(tree)
    return [".".join([name, *(_key_text(key) for key in path)]) for path, _ in keyed]


def _key_text(key: Any) -> str:
    for attribute in ("idx", "key", "name"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)
