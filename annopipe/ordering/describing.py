"""From a stage graph to its overlap problem."""

from collections.abc import Sequence

import torch
from torch import fx

from annopipe.graphs import meta
from annopipe.graphs.dependencies import predecessors
from annopipe.graphs.ops import group_name, is_declared, launch_of
from annopipe.graphs.regions import place
from annopipe.graphs.stage_graph import StageGraph, body
from annopipe.ordering.problem import OverlapNode, OverlapProblem
from annopipe.pytrees import tree_leaves

__all__ = ["carries_values", "problem_of"]


def problem_of(graph: StageGraph) -> OverlapProblem:
    """The overlap problem of a graph, without costs: its nodes in program order and what must come before each."""
    nodes = body(graph.graph)
    places = [meta.placement(node) for node in nodes]
    if None in places:
        place(graph)
    index = {node: number for number, node in enumerate(nodes)}
    streams = _streams_of_regions(nodes)
    described = []
    for number, node in enumerate(nodes):
        at = places[number] or meta.placed(node)
        launch = launch_of(node) if at.kind == "wait" else None
        waits = launch is not None and launch in index
        described.append(
            OverlapNode(
                index=number,
                name=at.key,
                region=at.region,
                kind="compute" if at.kind == "wait" and not waits else at.kind,
                lane=at.lane,
                phase=at.phase,
                queue=group_name(node) if at.kind == "launch" else "",
                launch=index[launch] if launch is not None and waits else -1,
                operation=_operation(node) if at.kind == "launch" else "",
                floating=at.kind == "launch" and carries_values(node),
                graph=at.key.rpartition(".")[0],
                stream=meta.tag_stream(node) if meta.tag_region(node) else streams.get(at.region, ""),
            )
        )
    before = tuple(tuple(earlier) for earlier in predecessors(nodes))
    return OverlapProblem(tuple(described), before, has_costs=False)


def _streams_of_regions(nodes: Sequence[fx.Node]) -> dict[str, str]:
    """Where regions are marked for a stream; nodes without a tag, such as gradient sums, go with their region."""
    return {meta.placed(node).region: stream for node in nodes if (stream := meta.tag_stream(node))}


def carries_values(launch: fx.Node) -> bool:
    """Whether a launch carries floating-point values, as many as the batch has; an exchange of counts does not."""
    values = tree_leaves([meta.value(launch), *map(meta.value, launch.all_input_nodes)])
    return any(v.is_floating_point() or v.is_complex() for v in values if isinstance(v, torch.Tensor))


def _operation(node: fx.Node) -> str:
    """A collective and what all ranks must have in common: its data type, reduction and the like."""
    fixed = [a for a in (*node.args, *node.kwargs.values()) if isinstance(a, str) and a != group_name(node)]
    fake = meta.value(node)
    texts = [str(node.target), str(getattr(fake, "dtype", ""))]
    uneven = "all_to_all" in texts[0] or "exchange" in texts[0] or is_declared(node)
    if not uneven and isinstance(fake, torch.Tensor):
        texts += [
            str(extent) for extent in fake.shape if isinstance(extent, int)
        ]  # other shapes would not fit together
    return " ".join([*texts, *fixed])
