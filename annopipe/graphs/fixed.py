"""Which nodes are fixed: computation is not moved across them, nor compiled or captured together with them."""

from torch import fx

from annopipe.graphs import meta
from annopipe.graphs.ops import traits

__all__ = ["is_fixed"]


def is_fixed(node: fx.Node) -> bool:
    """Whether a node is a launch, a wait, a host read, a write, draws random numbers, or is not understood.

    >>> graph = fx.Graph()
    >>> is_fixed(graph.call_module("linear"))
    True
    """
    if node.op != "call_function":
        return True
    if meta.marked_computation(node):
        return False
    known, at = traits(node), meta.placement(node)
    return (
        (at is not None and at.kind != "compute")
        or known.launch
        or known.wait
        or known.random
        or known.fence
        or bool(known.writes)
        or meta.makes_sizes(node)
    )
