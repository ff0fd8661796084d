"""Adapter to PyTorch's min-cut partitioner: which values a backward computes again to keep within a memory budget.

needs       a joint stage graph whose placeholders and results are in AOTAutograd's order.
does        marks what runs once only, and has the partitioner choose what is saved, on a copy of the graph.
guarantees  the graph is as it was; what may not run again is not chosen, whatever the budget.

Source: ``torch/_functorch/partitioners.py`` (``choose_saved_values_set``; ``min_cut_rematerialization_partition`` there
prepares a graph for it). It knows placeholders by their names and needs networkx, which PyTorch depends on.
"""

import torch
from torch import fx
from torch._functorch.partitioners import NodeInfo, choose_saved_values_set, classify_nodes

from annopipe.graphs import meta
from annopipe.graphs.extraction import ancestors
from annopipe.graphs.recomputation import may_run_again, recomputed
from annopipe.graphs.stage_graph import StageGraph, body, copy_nodes, input_nodes, output_nodes

__all__ = ["within_budget"]

_GRADIENTS = frozenset({"param_grad", "input_grad"})
_FAR = int(1e9)  # the partitioner's number for a value that no backward operation needs


def within_budget(joint: StageGraph, budget: float) -> set[fx.Node]:
    """The operations of the forward whose values the backward computes again.

    Args:
        budget: a share, as ``torch._functorch.config.activation_memory_budget``: 0 keeps inputs, 1 what is fastest.
    """
    results = dict(zip(joint.outputs, output_nodes(joint.graph), strict=True))
    gradients = [node for port, node in results.items() if port.role in _GRADIENTS and isinstance(node, fx.Node)]
    others = [node for port, node in results.items() if port.role not in _GRADIENTS]
    if not gradients:
        return set()
    graph, own = _copied(joint, [*others, *gradients])
    info = classify_nodes(fx.GraphModule(joint.attributes, graph), [], len(others))
    _measure_distances(graph, info)
    with torch.random.fork_rng(devices=[]):  # its estimates run operations
        saved = {own[node] for node in choose_saved_values_set(graph, info, memory_budget=budget)}
    forward = {node for node in body(joint.graph) if meta.is_traced_in_forward(node)}
    once = {node for node in forward if not may_run_again(node)}
    needed = ancestors(gradients, stop=saved | once)
    return (needed & forward) - saved - once


def _copied(joint: StageGraph, results: list[fx.Node]) -> tuple[fx.Graph, dict[fx.Node, fx.Node]]:
    """A copy with placeholders called as the partitioner expects, and for each of its nodes the original."""
    graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    for index, (port, node) in enumerate(zip(joint.inputs, input_nodes(joint.graph), strict=True)):
        kind = "tangents" if port.role == "tangent" else "primals"
        copies[node] = graph.placeholder(f"{kind}_{index + 1}")
        copies[node].meta = dict(node.meta)
    nodes = body(joint.graph)
    copy_nodes(graph, nodes, copies)
    graph.output(tuple(copies[node] for node in results))
    forward = {node for node in nodes if meta.is_traced_in_forward(node)}
    again = recomputed(joint.graph, forward)  # by checkpoints
    for node in forward - again:
        if meta.group(node) is not None or not may_run_again(node):
            meta.mark_recompute(copies[node], 0, again=False)
    return graph, {copy: node for node, copy in copies.items()}


def _measure_distances(graph: fx.Graph, info: NodeInfo) -> None:
    """Note how many operations are between a value and the backward, as the partitioner does first."""
    for node in reversed(graph.nodes):
        distance = _FAR if node.op == "output" or info.is_required_fw(node) else 0
        for user in node.users if distance and node.op != "output" else ():
            distance = min(distance, user.dist_from_bw + 1)
        node.dist_from_bw = distance
