r"""What a layer's graphs do one after the other, as ``annopipe.tuning`` orders it: computation, message, computation.

needs       the graphs of one layer, and what their nodes take.
does        numbers the messages of a graph in program order; puts computation in front of the first message that needs
            it, or, where none does, behind the last one that it needs.
guarantees  every node and every message counts once.

    attention, router -> dispatch -> experts -> combine -> add     Piece(attention + router, beside=shared, dispatch),
                \---> shared experts -----------------/            Piece(experts, combine), Piece(add)

Starting a message takes time of the thread that computes; it counts as computation.
"""

import itertools
from collections.abc import Callable

from annopipe.costs.node_costs import NodeCosts
from annopipe.graphs import meta
from annopipe.graphs.stage_graph import StageGraph, body
from annopipe.graphs.stage_graphs import StageGraphs
from annopipe.ordering.describing import problem_of
from annopipe.ordering.plan import with_costs
from annopipe.ordering.problem import OverlapProblem
from annopipe.tuning.layers import Piece, Pieces

__all__ = ["Price", "pieces_of"]

Price = Callable[[StageGraph], NodeCosts]


def pieces_of(graphs: StageGraphs, price: Price) -> Pieces:
    """The pieces of a layer's forward and of its backward.

    >>> import torch, annopipe as ap
    >>> graphs = ap.trace(torch.nn.Linear(2, 2, bias=False), (torch.ones(1, 2, requires_grad=True),))
    >>> pieces = pieces_of(graphs, lambda graph: ap.costs.roofline(graph, "h100"))
    >>> len(pieces.forward), pieces.backward[0].compute > 0.0, pieces.backward[0].weight > 0.0
    (1, True, True)
    """
    forward = _pieces(with_costs(problem_of(graphs.forward), price(graphs.forward)), set())
    if graphs.backward is None:
        return Pieces(forward, ())
    backward = with_costs(problem_of(graphs.backward), price(graphs.backward))
    return Pieces(forward, _pieces(backward, _keys(graphs.backward_weight) - _keys(graphs.backward_input)))


def _keys(graph: StageGraph | None) -> set[str]:
    if graph is None:
        return set()
    problem_of(graph)  # places its nodes
    return {meta.placed(node).key for node in body(graph.graph)}


def _pieces(problem: OverlapProblem, weights: set[str]) -> tuple[Piece, ...]:
    nodes = problem.nodes
    messages = [node.index for node in nodes if node.kind == "launch"]
    number = {index: place for place, index in enumerate(messages)}
    last = len(messages)
    behind, needed = [0] * len(nodes), [last] * len(nodes)
    for node, earlier in zip(nodes, problem.dependencies, strict=True):
        own = number[node.launch] + 1 if node.kind == "wait" else 0
        behind[node.index] = max([own, *(behind[index] for index in earlier)])
    for node in reversed(nodes):
        first = number.get(node.index, needed[node.index])
        for index in problem.dependencies[node.index]:
            needed[index] = min(needed[index], first)
    compute, beside, weight = ([0.0] * (last + 1) for _ in range(3))
    for node in nodes:
        if node.kind == "launch":
            compute[number[node.index]] += node.issue
        elif node.name in weights:
            weight[behind[node.index]] += node.cost
        elif needed[node.index] < last or behind[node.index] == last:
            compute[needed[node.index]] += node.cost
        else:
            beside[behind[node.index]] += node.cost
    sent = [*(nodes[index].cost for index in messages), 0.0]
    return tuple(itertools.starmap(Piece, zip(compute, beside, weight, sent, strict=True)))
