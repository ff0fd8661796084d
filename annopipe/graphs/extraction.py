"""``extract``: the one way in which graphs are split.

needs       a stage graph; outputs to keep; optionally nodes to take as inputs instead of computing them.
does        copies what lies on the way from the inputs to the kept outputs, in program order, and nothing else.
guarantees  the source is unchanged; every input port of the result is used; order among the copied nodes is kept. An
            operation that draws random numbers and that nothing kept needs is left out, so later ones draw others:
            name it in ``keep`` to draw as the source does.

    a -> b -> c -> out1          extract(g, ["out1"], inputs=[(port, b)])       (port) -> c -> out1
         b -> d -> out2
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import fx

from annopipe.errors import GraphError
from annopipe.graphs import meta
from annopipe.graphs.ops import is_getitem, launch_of, traits
from annopipe.graphs.ports import Port
from annopipe.graphs.stage_graph import StageGraph, add_input, copy_nodes, input_nodes, output_nodes

__all__ = ["Endpoint", "ancestors", "descendants", "extract", "saved_port"]

Endpoint = tuple[Port, fx.Node]


def extract(
    source: StageGraph,
    outputs: Sequence[str | Endpoint],
    *,
    inputs: Sequence[Endpoint] = (),
    keep: Iterable[fx.Node] = (),
) -> StageGraph:
    """The part of ``source`` that computes ``outputs``.

    Args:
        outputs: names of output ports of ``source``, or pairs of a new port and the node whose value it carries.
        inputs: pairs of a new input port and the node (a placeholder too) whose value it supplies.
        keep: nodes to keep although no output needs them (operations with effects).

    Raises:
        GraphError: an unknown output, a node of another graph, or a cut through a launch or a tuple, whose value no
            port can carry.
    """
    kept = [_endpoint(source, item) for item in outputs]
    supplied = {node: port for port, node in inputs}
    roots = [node for _, node in kept if isinstance(node, fx.Node)]
    for node in [*supplied, *roots]:
        _refuse_uncarriable(source, node)
    needed = ancestors([*roots, *keep], stop=supplied)
    needed |= ancestors(_completing(source, needed - supplied.keys()), stop=supplied)

    graph, environment, ports = fx.Graph(), dict[fx.Node, fx.Node](), list[Port]()
    own = zip(source.inputs, input_nodes(source.graph), strict=True)
    for port, node in [*((p, n) for p, n in own if n not in supplied), *((p, n) for n, p in supplied.items())]:
        if node in needed:
            environment[node] = add_input(graph, port.name, node)
            ports.append(port)
    wanted = [node for node in source.graph.nodes if node in needed and node not in environment]
    copy_nodes(graph, wanted, environment)
    graph.output(tuple(environment[node] if isinstance(node, fx.Node) else node for _, node in kept))
    return StageGraph(graph, ports, [p for p, _ in kept], attributes=source.attributes, guards=source.guards)


def ancestors(nodes: Iterable[fx.Node], *, stop: Iterable[fx.Node] = ()) -> set[fx.Node]:
    """``nodes`` and all they depend on; nodes in ``stop`` are included but not followed."""
    boundary, found = set(stop), set[fx.Node]()
    pending = list(nodes)
    while pending:
        node = pending.pop()
        if node not in found:
            found.add(node)
            if node not in boundary:
                pending += node.all_input_nodes
    return found


def descendants(nodes: Iterable[fx.Node]) -> set[fx.Node]:
    """``nodes`` and all that depends on them."""
    found, pending = set[fx.Node](), list(nodes)
    while pending:
        node = pending.pop()
        if node not in found:
            found.add(node)
            pending += node.users
    return found


def saved_port(node: fx.Node, source: str) -> Port:
    """The port of a value that crosses from one graph to another: "saved" for a tensor, "size" for a number."""
    fake = meta.value(node)
    return Port.of("saved" if isinstance(fake, torch.Tensor) else "size", source, fake)


def _endpoint(source: StageGraph, item: str | Endpoint) -> tuple[Port, Any]:
    if not isinstance(item, str):
        return item
    for port, node in zip(source.outputs, output_nodes(source.graph), strict=True):
        if port.name == item:
            return port, node
    raise GraphError(f"extract: no output port {item!r}; there are {', '.join(port.name for port in source.outputs)}")


def _completing(source: StageGraph, needed: set[fx.Node]) -> list[fx.Node]:
    """The waits without a result, which nothing needs but the order, of launches that are needed."""
    return [node for node in source.graph.nodes if traits(node).stays and launch_of(node) in needed]


def _refuse_uncarriable(source: StageGraph, node: fx.Node) -> None:
    if node.graph is not source.graph:
        raise GraphError(f"extract: {node.name} is a node of another graph")
    if traits(node).launch and not any(traits(user).stays for user in node.users):
        raise GraphError(f"cut at the launch {node.name}: its value is not ready; cut at its wait")
    if isinstance(meta.value(node), (list, tuple)) and not is_getitem(node):
        raise GraphError(f"cut at {node.name}, which yields several values: cut at the items that are used")
