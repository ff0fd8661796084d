"""``reorder``: put a graph's nodes in another order, and prove first that the order is legal.

needs       a stage graph whose nodes nobody else uses (a copy); an order of its nodes.
does        checks the order against every dependency, then relinks the nodes in place.
guarantees  same values, same mutations, same random numbers as program order; refused as a whole otherwise.

    a b c d   order [a, c, b, d]   ->   a c b d        (b -> c in the dependencies: refused)
"""

from collections.abc import Sequence
from typing import Any, Protocol

from torch import fx

from annopipe.errors import OrderError
from annopipe.graphs import meta
from annopipe.graphs.dependencies import predecessors
from annopipe.graphs.stage_graph import StageGraph, body


class Named(Protocol):
    """Anything with a name: nodes of a graph, or of an overlap problem."""

    @property
    def name(self) -> str:
        """What messages call it."""


__all__ = ["check_order", "relink", "reorder"]


def reorder(graph: StageGraph, order: Sequence[fx.Node]) -> StageGraph:
    """A copy of ``graph`` whose nodes run in ``order``.

    Args:
        order: every node of ``graph`` but placeholders and output, each once.

    Raises:
        OrderError: a node is missing, repeated or foreign, or a dependency is broken; the message names the nodes.
    """
    nodes = body(graph.graph)
    position = {node: index for index, node in enumerate(nodes)}
    if foreign := [node for node in order if node not in position]:
        raise OrderError(f"the order has {len(foreign)} nodes that are not in the graph, such as {foreign[0]}")
    indices = [position[node] for node in order]
    check_order(nodes, indices, predecessors(nodes))
    result = graph.copy()
    relink(result.graph, [body(result.graph)[index] for index in indices])
    return result


def check_order(nodes: Sequence[Named], order: Sequence[int], before: Sequence[Sequence[int]]) -> None:
    """Prove that ``order``, positions in ``nodes``, has each node once and keeps every dependency.

    Raises:
        OrderError: it does not.
    """
    count = len(nodes)
    place = [-1] * count
    for rank, index in enumerate(order):
        if not 0 <= index < count:
            raise OrderError(f"position {index} in the order is not one of the graph's {count} nodes")
        if place[index] >= 0:
            raise OrderError(f"{_name(nodes[index])} stands twice in the order: each node runs exactly once")
        place[index] = rank
    if len(order) != count:
        missing = [_name(nodes[i]) for i in range(count) if place[i] < 0]
        raise OrderError(f"{len(missing)} of {count} nodes are missing in the order: {', '.join(missing[:5])}")
    for index, earlier in enumerate(before):
        mine = place[index]
        for source in earlier:
            if place[source] > mine:
                raise OrderError(
                    f"{_name(nodes[index])} stands before {_name(nodes[source])}, which must come first: an input of "
                    "it, or before it because of a mutation, a random number, a fence or an agreed order of collectives"
                )


def relink(graph: fx.Graph, order: Sequence[fx.Node]) -> None:
    """Put ``order`` between the placeholders and the output, in place; the order must have been checked."""
    output = graph.output_node()
    for node in order:
        output.prepend(node)


def _name(node: Named) -> str:
    at: Any = meta.placement(node) if isinstance(node, fx.Node) else node
    return f"{node.name} ({at.lane}/{at.region})" if at else node.name
