"""Split a backward graph into its input half I and its weight half W.

needs       a backward stage graph.
does        I is what the input gradients and every launch need; W is the rest. Two calls of ``extract``.
guarantees  every launch is in I, also on a first stage, whose inputs need no gradient; gradients of both halves together are
            those of the backward; a parameter gradient that I finishes anyway is an output of I; what crosses is counted
            once per storage (views are made again in W).

    backward: saved, t -> dx, dw        I: saved, t -> dx, crossing        W: saved, crossing -> dw
"""

import torch
from torch import fx

from annopipe.graphs import meta
from annopipe.graphs.extraction import ancestors, extract
from annopipe.graphs.ops import is_getitem, launch_of, traits, view_chain
from annopipe.graphs.ports import Port
from annopipe.graphs.stage_graph import StageGraph, body, output_nodes

__all__ = ["input_half", "split_backward"]


def input_half(graph: fx.Graph, input_gradients: list[fx.Node]) -> set[fx.Node]:
    """The nodes of the I half: ancestors of input gradients and of launches, with their getitems and waits."""
    launches = [node for node in body(graph) if traits(node).launch]
    half = ancestors([*input_gradients, *launches])
    for node in graph.nodes:
        if node.op == "call_function" and (is_getitem(node) or launch_of(node) is not None):
            if all(source in half for source in node.all_input_nodes):
                half.add(node)
    return half


def split_backward(backward: StageGraph) -> tuple[StageGraph, StageGraph]:
    """The graphs of I (backward-input) and W (backward-weight); either may be empty."""
    results = dict(zip(backward.outputs, output_nodes(backward.graph), strict=True))
    half = input_half(backward.graph, [n for p, n in results.items() if p.role == "input_grad"])
    early = [p for p, node in results.items() if p.role == "input_grad" or node in half and node.op != "placeholder"]
    late = [p for p in results if p not in early]
    crossing = _crossing(backward, half, [results[p] for p in late])
    effects = [n for n in body(backward.graph) if traits(n).random or traits(n).writes or traits(n).fence]
    waits = [n for n in half if launch_of(n) is not None]
    first = extract(backward, [*(p.name for p in early), *crossing], keep=[*waits, *(n for n in effects if n in half)])
    second = extract(
        backward, [p.name for p in late], inputs=crossing, keep=[n for n in effects if n not in half]
    )
    return first, second


def _crossing(backward: StageGraph, half: set[fx.Node], late: list[fx.Node]) -> list[tuple[Port, fx.Node]]:
    needed = ancestors(late, stop=[n for n in half if n.op != "placeholder"])
    crossing: set[fx.Node] = set()
    for node in needed & half:
        root, others = view_chain(node)
        crossing |= {root, *others}
    return [
        (Port.of("saved" if isinstance(meta.value(n), torch.Tensor) else "size", f"backward.{n.name}", meta.value(n)), n)
        for n in backward.graph.nodes
        if n in crossing and n.op not in ("placeholder", "get_attr")
    ]
