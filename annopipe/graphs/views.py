"""Which nodes are views: they make no data, so whoever needs one can make it again."""

import torch
from torch import fx

from annopipe.graphs import meta
from annopipe.graphs.operators import is_composite
from annopipe.graphs.ops import is_getitem, is_operator, traits

__all__ = ["is_view"]


def is_view(node: fx.Node) -> bool:
    """Whether a node is a view, or an item of one, whatever data it is given.

    ``reshape`` copies where it has to: it counts only where its argument lies in one piece.

    >>> graph = fx.Graph()
    >>> x = graph.placeholder("x")
    >>> is_view(graph.call_function(torch.ops.aten.t.default, (x,)))
    True
    """
    while is_getitem(node) and node.all_input_nodes:
        node = node.all_input_nodes[0]
    known = traits(node)
    if not known.view or known.fence or known.wait or not is_operator(node.target):
        return False
    return not is_composite(node.target) or _lies_in_one_piece(meta.value(node.all_input_nodes[0]))  # type: ignore[arg-type]


def _lies_in_one_piece(value: object) -> bool:
    """Whether the strides are the usual ones; sizes that depend on data are compared as expressions."""
    if not isinstance(value, torch.Tensor):
        return False
    expected: list[str] = []
    length: int | torch.SymInt = 1
    for size in reversed(value.shape):
        expected.insert(0, str(length))
        length = length * size
    return [str(stride) for stride in value.stride()] == expected
