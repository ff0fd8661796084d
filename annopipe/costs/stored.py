"""What a stage keeps in memory between its actions, in bytes, from the fake values of its graphs.

Values are counted once per storage: views share that of what they are views of, and views of parameters or buffers cost
nothing. Sizes that depend on data are those of balanced routing, or of a rank that gets more than its share.
"""

import dataclasses
import functools
from collections.abc import Iterable

import torch
from torch import fx

from annopipe.costs.sizes import Sizes
from annopipe.graphs import meta
from annopipe.graphs.ops import view_chain
from annopipe.graphs.ports import Port
from annopipe.graphs.stage_graph import StageGraph, input_nodes, output_nodes
from annopipe.graphs.stage_graphs import StageGraphs
from annopipe.pytrees import tree_leaves

__all__ = ["StoredBytes", "stored_bytes"]

_LASTING = ("param", "buffer", "unsharded")


@dataclasses.dataclass(frozen=True)
class StoredBytes:
    """Bytes that one stage keeps.

    activation: of one microbatch, from its forward to its backward.
    kept_for_weight: of one microbatch, from its backward-input to its backward-weight.
    parameters: parameters and their gradients, and buffers; all the time.
    output: what one microbatch hands to the next stage.
    """

    activation: int
    kept_for_weight: int
    parameters: int
    output: int


def stored_bytes(graphs: StageGraphs, *, skew: float = 1.0) -> StoredBytes:
    """What a traced stage keeps, and hands on.

    Args:
        graphs: of one stage.
        skew: as in ``ap.costs.roofline``: how many times its even share of the rows this rank gets.

    Raises CostError for a size that depends on data and that balanced routing does not tell, and for a skew below 1.

    >>> import annopipe as ap
    >>> stored_bytes(ap.trace(torch.nn.Linear(4, 2, bias=False), (torch.ones(8, 4),)))
    StoredBytes(activation=128, kept_for_weight=192, parameters=64, output=64)
    """
    counted = _Counted(skew)
    forward, backward = graphs.forward, graphs.backward
    outputs = [port for port in forward.outputs if port.role in ("output", "loss")]
    handed_on = counted.bytes(forward, _roots(forward, {port.name for port in outputs}))
    parameters = _parameters(graphs, counted)
    if backward is None or graphs.backward_input is None or graphs.backward_weight is None:
        return StoredBytes(0, 0, parameters, handed_on)
    kept = _roots(forward, _names(backward.inputs))
    weight = graphs.backward_weight
    wanted = _names(weight.inputs)
    still_kept = counted.bytes(forward, _roots(forward, wanted))
    made = counted.bytes(graphs.backward_input, _made(graphs.backward_input, wanted))
    came = counted.bytes(weight, _roots(weight, {port.name for port in weight.inputs if port.role == "tangent"}))
    return StoredBytes(counted.bytes(forward, kept), still_kept + made + came, parameters, handed_on)


class _Counted:
    """Counts the bytes of values of a stage's graphs."""

    def __init__(self, skew: float) -> None:
        self._sizes = functools.cache(functools.partial(Sizes, skew=skew))

    def bytes(self, graph: StageGraph, nodes: Iterable[fx.Node]) -> int:
        """Of these nodes' tensors in all."""
        sizes = self._sizes(graph)
        tensors = [(leaf, node) for node in nodes for leaf in tree_leaves(meta.value(node))]
        return sum(
            sizes.elements(leaf, node) * leaf.element_size() for leaf, node in tensors if isinstance(leaf, torch.Tensor)
        )


def _names(ports: Iterable[Port]) -> set[str]:
    return {port.name for port in ports}


def _roots(graph: StageGraph, wanted: set[str]) -> list[fx.Node]:
    """What the storage of each wanted value belongs to, once each, parameters and buffers left out."""
    ports = dict(zip(input_nodes(graph.graph), graph.inputs, strict=True))
    carried = [node for node, port in ports.items() if port.name in wanted]
    results = zip(graph.outputs, output_nodes(graph.graph), strict=True)
    carried += [node for port, node in results if port.name in wanted and isinstance(node, fx.Node)]
    roots = dict.fromkeys(view_chain(node)[0] for node in carried)
    return [root for root in roots if root not in ports or ports[root].role not in _LASTING]


def _made(graph: StageGraph, wanted: set[str]) -> list[fx.Node]:
    """Of the wanted values those that the graph makes, by what their storage belongs to."""
    taken = set(input_nodes(graph.graph))
    return [root for root in _roots(graph, wanted) if root not in taken]


def _parameters(graphs: StageGraphs, counted: _Counted) -> int:
    """Parameters and buffers by their source, which tied ones share, and the gradients of those that get one.

    Gathered parameters and unreduced gradients, too: both are there while a stage computes.
    """
    every = [g for g in (graphs.forward, graphs.backward, graphs.unshard, graphs.reduce_grad) if g is not None]
    results = [port for graph in every for port in graph.outputs]
    learned = {port.source for port in results if port.role == "param_grad"}
    unreduced = {port.source for port in results if port.role == "unreduced"}
    found: dict[str, int] = {}
    for graph in every:
        for port, node in zip(graph.inputs, input_nodes(graph.graph), strict=True):
            if port.role in _LASTING:
                gathered = port.role == "unsharded"
                has_gradient = port.source in (unreduced if gathered else learned)
                times = 2 if has_gradient else 1
                found[port.name if gathered else port.source] = times * counted.bytes(graph, [node])
    return sum(found.values())
