"""Which gradients a step has at all: those that come from a loss, followed back through the stages.

Eager autograd computes no gradient for what no loss depends on, and ``.grad`` stays None there. A stage is traced
before anybody knows which of its outputs the later stages differentiate; this drops what turns out to be for nothing.
"""

import dataclasses
from collections.abc import Mapping, Sequence

from torch import fx

from annopipe.graphs.extraction import extract
from annopipe.graphs.ops import has_effect
from annopipe.graphs.stage_graph import StageGraph, body, input_nodes, output_nodes
from annopipe.graphs.stage_graphs import AUXILIARY_LOSS, LOSS, StageGraphs
from annopipe.pipeline.stages.dead_gradients import node_needs, without_dead
from annopipe.scheduling.placement import Placement

__all__ = ["Needs", "gradient_needs", "only_live", "returning_gradients"]

# By port of a gradient: the outputs, or losses, on whose gradients it depends.
Needs = Mapping[str, frozenset[str]]
_LOSSES = frozenset((LOSS, AUXILIARY_LOSS))


def gradient_needs(backward: StageGraph | None) -> Needs:
    """What each gradient of a backward graph depends on.

    One that is made from no other (the backward of a custom function returns a constant) is there when any is.
    """
    if backward is None:
        return {}
    nothing = frozenset[str]()
    needs = node_needs(backward)
    outputs = zip(backward.outputs, output_nodes(backward.graph), strict=True)
    anything = nothing.union(*needs.values())
    return {port.name: needs[node] or anything if isinstance(node, fx.Node) else nothing for port, node in outputs}


def returning_gradients(
    placement: Placement,
    stages: Sequence[Sequence[frozenset[str] | None]],
    ports: Sequence[Sequence[str]],
    outside: Sequence[frozenset[str]] = (),
) -> dict[tuple[int, int], tuple[int, ...]]:
    """For each edge: the positions, among the tensors that its first stage hands on, whose gradients come back.

    Args:
        placement: what flows between stages.
        stages: by stage, what the gradient of each handed tensor depends on, those of the first predecessor first; None
            where there is no gradient.
        ports: by stage, the output ports that it hands on.
        outside: by stage, the outputs of which something outside the stages computes gradients; none if not given.

    >>> from annopipe.scheduling import placement
    >>> chain = placement.linear(3)
    >>> returning_gradients(chain, [[], [frozenset({"y"}), None], [frozenset({"loss"})]], [["a", "b"], ["y"], []])
    {(1, 2): (0,), (0, 1): (0,)}
    >>> returning_gradients(chain, [[], [frozenset({"y"}), None], [None]], [["a", "b"], ["y"], []])
    {(1, 2): (), (0, 1): ()}
    """
    found: dict[tuple[int, int], tuple[int, ...]] = {}
    arriving = [set(given) for given in outside] or [set[str]() for _ in stages]
    for stage in sorted(range(len(stages)), key=lambda stage: -placement.depth_of[stage]):
        live, at = _LOSSES | arriving[stage], 0
        for source in placement.predecessors[stage]:
            needs = stages[stage][at : at + len(ports[source])]
            at += len(ports[source])
            found[source, stage] = tuple(n for n, need in enumerate(needs) if need is not None and need & live)
            arriving[source] |= {ports[source][n] for n in found[source, stage]}
    return found


def only_live(graphs: StageGraphs, arriving: frozenset[str]) -> StageGraphs:
    """The graphs without gradients that depend on no loss.

    Args:
        arriving: the outputs whose gradients come from later stages.
    """
    backward, live = graphs.backward, _LOSSES | arriving
    if backward is None:
        return graphs
    needs = gradient_needs(backward)
    wanted = [name for name, sources in needs.items() if sources & live]
    if all(sources <= live for sources in needs.values()):
        return graphs
    backward = without_dead(backward, live)
    effects = [node for node in body(backward.graph) if has_effect(node)]
    reduce_grad = _reducing(graphs.reduce_grad, wanted) if graphs.reduce_grad is not None else None
    kept = extract(backward, wanted, keep=effects) if wanted else None
    return dataclasses.replace(graphs, backward=kept, reduce_grad=reduce_grad)


def _reducing(reduce_grad: StageGraph, given: Sequence[str]) -> StageGraph | None:
    """The part of it that takes only what is given."""
    known: set[fx.Node] = set()
    for port, node in zip(reduce_grad.inputs, input_nodes(reduce_grad.graph), strict=True):
        if port.name in given:
            known.add(node)
    for node in body(reduce_grad.graph):
        if all(source in known for source in node.all_input_nodes):
            known.add(node)
    results = zip(reduce_grad.outputs, output_nodes(reduce_grad.graph), strict=True)
    wanted = [port.name for port, node in results if node in known]
    return extract(reduce_grad, wanted) if wanted else None
