"""Take the gradients that no loss has out of a backward graph, where they meet gradients that one has.

Autograd does not run what no gradient reaches. A graph that was traced before anybody knew would run it on zeros: work
for nothing, and NaN where zero meets an infinite derivative, as that of a logarithm at 0.

    tangent a (live) ----------------- + -> gradient of x        the sum is its live part; where a dead value is
    tangent b (dead) -> div by zero -- +                         stacked beside a live one, zeros take its place
"""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any

import torch
from torch import fx

from annopipe.graphs import meta
from annopipe.graphs.stage_graph import StageGraph, body, input_nodes

__all__ = ["is_made_anew", "node_needs", "without_dead"]

Needs = Mapping[fx.Node, frozenset[str]]


def node_needs(backward: StageGraph) -> dict[fx.Node, frozenset[str]]:
    """For every node of a backward graph: the outputs, or losses, on whose gradients it depends."""
    nothing = frozenset[str]()
    needs: dict[fx.Node, frozenset[str]] = {}
    for port, node in zip(backward.inputs, input_nodes(backward.graph), strict=True):
        needs[node] = frozenset((port.source,)) if port.role == "tangent" else nothing
    for node in body(backward.graph):
        needs[node] = nothing.union(*(needs[source] for source in node.all_input_nodes))
    return needs


def without_dead(backward: StageGraph, live: AbstractSet[str]) -> StageGraph:
    """A copy in which no live gradient is computed from a dead one.

    Args:
        live: the outputs and losses that have gradients.
    """
    found = backward.copy()
    needs = node_needs(found)
    dead = _dead(needs, live)
    for node in body(found.graph):
        if needs[node] & live:
            for source in [source for source in node.all_input_nodes if source in dead]:
                _take_out(found.graph, node, source)
    return found


def _dead(needs: Needs, live: AbstractSet[str]) -> set[fx.Node]:
    """Nodes whose value is zero because all gradients that it is made from are."""
    dead: set[fx.Node] = set()
    for node, sources in needs.items():  # in the order of the graph
        made_from_dead = sources and all(source in dead for source in node.all_input_nodes if needs[source])
        if made_from_dead and not sources & live and _is_gradient(meta.value(node)) and not is_made_anew(node):
            dead.add(node)
    return dead


def _is_gradient(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(item is None or _is_gradient(item) for item in value)
    if not isinstance(value, torch.Tensor) or not (value.is_floating_point() or value.is_complex()):
        return False
    return all(isinstance(extent, int) for extent in value.shape)


def is_made_anew(node: fx.Node) -> bool:
    """Whether only the shape of what it takes is used: ``ones_like``, ``new_full``."""
    name = getattr(node.target, "__name__", "")
    return "_like" in name or name.startswith("new_")


def _take_out(graph: fx.Graph, node: fx.Node, source: fx.Node) -> None:
    others = [other for other in node.args if other is not source]
    if node.target is torch.ops.aten.add.Tensor and not node.kwargs and isinstance(others[0], fx.Node):
        own, other = meta.value(node), meta.value(others[0])
        if own.shape == other.shape and own.dtype == other.dtype:
            node.replace_all_uses_with(others[0])
            return
    value = meta.value(source)
    with graph.inserting_before(node):
        zeros = graph.call_function(
            torch.ops.aten.zeros.default, (list(value.shape),), {"dtype": value.dtype, "device": value.device}
        )
    zeros.meta = dict(source.meta)
    node.replace_input_with(source, zeros)
