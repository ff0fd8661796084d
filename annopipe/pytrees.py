"""Nested containers of values. Wraps ``torch.utils._pytree``, which PyTorch's own capture uses: the same leaves."""

from typing import Any

from torch.utils._pytree import (
    SUPPORTED_NODES,
    TreeSpec,
    tree_flatten,
    tree_leaves,
    tree_map,
    tree_map_only,
    tree_structure,
    tree_unflatten,
)

__all__ = ["TreeSpec", "leaf_paths", "tree_flatten", "tree_leaves", "tree_map", "tree_map_only", "tree_unflatten"]


def leaf_paths(tree: Any, name: str) -> list[str]:
    """A dotted path for every leaf of a tree, in flattening order; ``name`` itself for a single leaf.

    >>> leaf_paths({"hidden": 1, "masks": (2, 3)}, "state")
    ['state.hidden', 'state.masks.0', 'state.masks.1']
    """
    spec = tree_structure(tree)
    if spec.is_leaf():
        return [name]
    children, names = _named_children(tree, spec)
    return [path for child, own in zip(children, names, strict=True) for path in leaf_paths(child, f"{name}.{own}")]


def _named_children(tree: Any, spec: TreeSpec) -> tuple[list[Any], list[str]]:
    """Children of a container and what they are called; by position where its type was registered without names."""
    definition = SUPPORTED_NODES[spec.type]
    if definition.flatten_with_keys_fn is not None:
        keyed, _ = definition.flatten_with_keys_fn(tree)
        return [child for _, child in keyed], [_key_text(key) for key, _ in keyed]
    children, context = definition.flatten_fn(tree)
    named = isinstance(context, (list, tuple)) and len(context) == len(children)
    if named and all(isinstance(key, str) for key in context):
        return list(children), list(context)
    return list(children), [str(index) for index in range(len(children))]


def _key_text(key: Any) -> str:
    for attribute in ("idx", "key", "name"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)
