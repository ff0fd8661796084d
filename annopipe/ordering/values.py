"""The memory of a combined graph: which values are live from where to where, from its nodes' fake values.

Counted are the values that the graph makes, and those that it is called with and that nobody else holds: activations,
tangents, inputs. Parameters, buffers and constants are there all the time. Sizes that depend on data are those of
balanced routing. A value is a storage, which views and waits share; a launch holds what it sends until its wait.
"""

from collections.abc import Iterable

import torch
from torch import fx

from annopipe.costs.sizes import Sizes
from annopipe.graphs import meta
from annopipe.graphs.ops import is_getitem, launch_of, sharing_arguments
from annopipe.graphs.stage_graph import StageGraph, body, input_nodes, output_nodes
from annopipe.ordering.problem import Value
from annopipe.pytrees import tree_leaves

__all__ = ["values_of"]

_LASTING = ("param", "buffer", "unsharded", "size")


def values_of(graph: StageGraph) -> tuple[Value, ...]:
    """The values of a graph, by the positions of its nodes.

    Raises CostError for a size that depends on data and that balanced routing does not tell.

    >>> import annopipe as ap
    >>> values_of(ap.trace(torch.nn.Linear(4, 2, bias=False), (torch.ones(8, 4),)).forward)[0].size_bytes
    128
    """
    nodes, inputs = body(graph.graph), input_nodes(graph.graph)
    index = {node: position for position, node in enumerate(nodes)}
    roots = _roots([*inputs, *nodes])
    used: dict[fx.Node, set[int]] = {}
    for node in nodes:
        launch = launch_of(node)
        for source in [*node.all_input_nodes, *(launch.all_input_nodes if launch in index else ())]:
            for root in roots.get(source, ()):
                used.setdefault(root, set()).add(index[node])
    lasting = {node for node, port in zip(inputs, graph.inputs, strict=True) if port.role in _LASTING}
    results = [node for node in output_nodes(graph.graph) if isinstance(node, fx.Node)]
    kept = {root for node in results for root in roots.get(node, ())}
    sizes, found = Sizes(graph), []
    for root in dict.fromkeys(root for own in roots.values() for root in own):
        if root in lasting or root.op == "get_attr" or _is_taken_apart(root):
            continue
        if size := _bytes(root, sizes):
            maker = root.all_input_nodes[0] if is_getitem(root) else root
            found.append(Value(size, index.get(maker, -1), tuple(sorted(used.get(root, ()))), root in kept))
    return tuple(found)


def _roots(nodes: Iterable[fx.Node]) -> dict[fx.Node, tuple[fx.Node, ...]]:
    """The nodes whose storage each node's result may be in: its own, unless it shares that of others."""
    roots: dict[fx.Node, tuple[fx.Node, ...]] = {}
    for node in nodes:
        shared = dict.fromkeys(root for source in sharing_arguments(node) for root in roots.get(source, ()))
        roots[node] = tuple(shared) or (node,)
    return roots


def _is_taken_apart(node: fx.Node) -> bool:
    """Whether the result is several tensors, each of which an item stands for."""
    return isinstance(meta.value(node), (tuple, list)) and all(is_getitem(user) for user in node.users)


def _bytes(node: fx.Node, sizes: Sizes) -> int:
    leaves = [leaf for leaf in tree_leaves(meta.value(node)) if isinstance(leaf, torch.Tensor)]
    return sum(sizes.elements(leaf, node) * leaf.element_size() for leaf in leaves)
