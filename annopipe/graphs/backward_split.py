"""Split a backward graph into its input half I and its weight half W.

needs       a backward stage graph.
does        I is what the input gradients, every launch and every operation with an effect need; W is the rest. Two
            calls of ``extract``.
guarantees  every launch is in I, also on a first stage, whose inputs need no gradient; random numbers and effects come
            as in the backward; gradients of both halves together are those of the backward; a parameter gradient that
            I finishes anyway is an output of I; what crosses is counted once per storage (views are made again in W).

    backward: saved, t -> dx, dw        I: saved, t -> dx, crossing        W: saved, crossing -> dw
"""

from torch import fx

from annopipe.graphs.extraction import Endpoint, ancestors, extract, saved_port
from annopipe.graphs.ops import has_effect, is_getitem, launch_of, traits, view_chain
from annopipe.graphs.stage_graph import StageGraph, body, output_nodes

__all__ = ["input_half", "split_backward"]


def input_half(graph: fx.Graph, input_gradients: list[fx.Node]) -> set[fx.Node]:
    """The nodes of the I half: ancestors of input gradients, launches and effects, with their getitems and waits."""
    needed = [node for node in body(graph) if traits(node).launch or has_effect(node)]
    half = ancestors([*input_gradients, *needed])
    for node in graph.nodes:
        stays = is_getitem(node) or launch_of(node) is not None
        if stays and all(source in half for source in node.all_input_nodes):
            half.add(node)
    return half


def split_backward(backward: StageGraph) -> tuple[StageGraph, StageGraph]:
    """The graphs of I (backward-input) and W (backward-weight); either may be empty."""
    results = dict(zip(backward.outputs, output_nodes(backward.graph), strict=True))
    half = input_half(backward.graph, [n for p, n in results.items() if p.role == "input_grad"])
    early = [p for p, node in results.items() if p.role == "input_grad" or _is_made_in(half, node)]
    late = [p for p in results if p not in early]
    crossing = _crossing(backward, half, [results[p] for p in late])
    kept = [n for n in half if has_effect(n) or launch_of(n) is not None]
    first = extract(backward, [*(p.name for p in early), *crossing], keep=kept)
    second = extract(backward, [p.name for p in late], inputs=crossing)
    return first, second


def _is_made_in(half: set[fx.Node], node: fx.Node) -> bool:
    return node in half and node.op not in ("placeholder", "get_attr")


def _crossing(backward: StageGraph, half: set[fx.Node], late: list[fx.Node]) -> list[Endpoint]:
    needed = ancestors(late, stop=[n for n in half if _is_made_in(half, n)])
    crossing: set[fx.Node] = set()
    for node in needed & half:
        root, others = view_chain(node)
        crossing |= {root, *others}
    made = [n for n in backward.graph.nodes if n in crossing and n.op not in ("placeholder", "get_attr")]
    return [(saved_port(n, f"backward.{n.name}"), n) for n in made]
