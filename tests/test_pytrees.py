"""Names of the leaves of nested containers."""

import collections
import dataclasses
from typing import Any

import pytest
import torch

from annopipe.pytrees import leaf_paths, tree_flatten, tree_unflatten

Pair = collections.namedtuple("Pair", "a b")  # noqa: PYI024 - the untyped form is what users have


@dataclasses.dataclass
class Registered:
    """A dataclass that PyTorch is told about."""

    x: Any
    y: Any = 3


torch.utils._pytree.register_dataclass(Registered)


@pytest.mark.parametrize(
    ("tree", "paths"),
    [
        (3, ["t"]),
        (None, ["t"]),
        ([], []),
        ([1, (2, {"a": 3, 5: 4})], ["t.0", "t.1.0", "t.1.1.a", "t.1.1.5"]),
        (Pair(1, [2]), ["t.a", "t.b.0"]),
        (Registered(1, {"k": 2}), ["t.x", "t.y.k"]),
        (collections.OrderedDict(b=1, a=2), ["t.b", "t.a"]),
        (collections.deque([1, 2]), ["t.0", "t.1"]),
        (torch.ones(2, 2).max(1), ["t.0", "t.1"]),
    ],
)
def test_every_leaf_has_a_path_in_flattening_order(tree: Any, paths: list[str]) -> None:
    leaves, spec = tree_flatten(tree)
    assert leaf_paths(tree, "t") == paths
    assert len(leaves) == len(paths)
    assert type(tree_unflatten(leaves, spec)) is type(tree)


def test_containers_registered_without_names_use_their_keys_or_count() -> None:
    class Named(dict[str, Any]):
        """Registered with its keys as context, as those of transformers are."""

    class Counted(list[Any]):
        """Registered with a context that says nothing."""

    pytree = torch.utils._pytree
    pytree.register_pytree_node(
        Named, lambda d: (list(d.values()), list(d)), lambda v, k: Named(zip(k, v, strict=True))
    )
    pytree.register_pytree_node(Counted, lambda c: (list(c), None), lambda v, _: Counted(v))
    assert leaf_paths(Named(hidden=1, more=Counted([2, 3])), "t") == ["t.hidden", "t.more.0", "t.more.1"]
