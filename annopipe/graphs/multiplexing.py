"""``multiplex``: the one way in which graphs are combined.

needs       stage graphs; one lane name for each.
does        puts their nodes side by side in one graph, ports prefixed by the lane ("F.input.x"), without any dependency
            between lanes. The graph is built when first needed, and once for every plan, which may relink its own.
guarantees  running it is running the graphs one after the other; every node keeps its tags and knows its lane.

    F: x -> y        B: s, t -> dx        multiplex(F, B): F.x, B.s, B.t -> F.y, B.dx
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from torch import fx

from annopipe.errors import GraphError
from annopipe.graphs import meta
from annopipe.graphs.meta import Placement
from annopipe.graphs.regions import place
from annopipe.graphs.stage_graph import (
    StageGraph,
    add_input,
    body,
    copy_nodes,
    input_nodes,
    output_nodes,
    refuse_compiled,
)

__all__ = ["into_lane", "multiplex", "out_of_lane"]

_LANE = re.compile(r"[A-Za-z]\w*")


def multiplex(*graphs: StageGraph, lanes: Sequence[str] | None = None) -> StageGraph:
    """Combine graphs that may run together: a forward with a backward, two nano-batches, or any number of them.

    Program order is the order of the arguments: a policy that does not reorder runs the first graph, then the second.

    Args:
        lanes: one name per graph, a letter and then letters, digits or _; "L0", "L1" and so on if left out.

    Raises:
        GraphError: no graph, something else than a graph, a compiled graph, lane names that are too few, malformed or
            repeated, or two lanes that update the same buffer.
    """
    names = [f"L{index}" for index in range(len(graphs))] if lanes is None else list(lanes)
    if not graphs or len(names) != len(graphs) or len(set(names)) != len(names):
        raise GraphError(
            f"multiplex takes one distinct lane name per graph, got {len(graphs)} graphs and lanes {names}"
        )
    for name in names:
        if not isinstance(name, str) or not _LANE.fullmatch(name):
            raise GraphError(f"lane {name!r}: use a letter followed by letters, digits or _")
    for graph in graphs:
        if not isinstance(graph, StageGraph):
            raise GraphError(
                f"multiplex takes stage graphs, got {type(graph).__name__}: pass graphs.forward or graphs.backward"
            )
    parts = list(zip(names, graphs, strict=True))
    _refuse_lost_updates(parts)
    for _, graph in parts:
        refuse_compiled(graph, "multiplex")
        place(graph)
    return StageGraph(
        lambda: _union(parts),
        [port.with_lane(lane) for lane, graph in parts for port in graph.inputs],
        [port.with_lane(lane) for lane, graph in parts for port in graph.outputs],
        attributes={
            _attribute_name(number, name): value
            for number, (_, graph) in enumerate(parts)
            for name, value in graph.attributes.items()
        },
        guards=[guard.with_lane(lane) for lane, graph in parts for guard in graph.guards],
    )


def into_lane(values: Mapping[str, Any], lane: str) -> dict[str, Any]:
    """Values by port name as a multiplexed graph takes them.

    >>> into_lane({"input.x": 1}, "F")
    {'F.input.x': 1}
    """
    return {f"{lane}.{name}": value for name, value in values.items()}


def out_of_lane(values: Mapping[str, Any], lane: str) -> dict[str, Any]:
    """The part of a multiplexed graph's result that belongs to one lane, under the names of that lane's own graph.

    Raises:
        GraphError: there is no value of that lane.

    >>> out_of_lane({"F.output": 1, "B.input_grad.x": 2}, "B")
    {'input_grad.x': 2}
    """
    own = {name.removeprefix(f"{lane}."): value for name, value in values.items() if name.startswith(f"{lane}.")}
    if not own:
        lanes = sorted({name.partition(".")[0] for name in values})
        raise GraphError(f"no value of lane {lane!r}; there are values of {', '.join(lanes)}")
    return own


def _refuse_lost_updates(parts: list[tuple[str, StageGraph]]) -> None:
    """Two lanes that update one buffer both start from its old value: one update would be lost."""
    first: dict[str, str] = {}
    for lane, graph in parts:
        for port in graph.outputs:
            if port.role == "buffer_update" and first.setdefault(port.source, lane) != lane:
                raise GraphError(
                    f"lanes {first[port.source]} and {lane} both update buffer {port.source}, and one update would be "
                    "lost: run these graphs one after the other, each with write_buffers behind it"
                )


def _union(parts: list[tuple[str, StageGraph]]) -> fx.Graph:
    graph = fx.Graph()
    environments = []
    for lane, part in parts:
        environment: dict[fx.Node, fx.Node] = {}
        for node in input_nodes(part.graph):
            environment[node] = add_input(graph, f"{lane}_{node.name}", node)
        environments.append(environment)
    results: list[Any] = []
    for number, ((lane, part), environment) in enumerate(zip(parts, environments, strict=True)):
        nodes = body(part.graph)
        copy_nodes(graph, nodes, environment)
        for node in nodes:
            copy = environment[node]
            if copy.op == "get_attr":
                copy.target = _attribute_name(number, str(node.target))
            _place_in_lane(copy, lane)
        results += [environment[n] if isinstance(n, fx.Node) else n for n in output_nodes(part.graph)]
    graph.output(tuple(results))
    return graph


def _place_in_lane(node: fx.Node, lane: str) -> None:
    at = meta.placed(node)
    meta.set_placement(node, Placement(at.region, at.kind, lane + at.lane, at.phase, at.rule, f"{lane}.{at.key}"))


def _attribute_name(number: int, name: str) -> str:
    return f"lane{number}_{name}"
