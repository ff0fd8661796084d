"""Decide which stage does what of a forward that is cut, and which values cross."""

from collections.abc import Mapping, Sequence

from torch import fx

from annopipe.errors import PipelineError

__all__ = ["crossing_values", "stages_of_nodes"]


def stages_of_nodes(graph: fx.Graph, starts: Sequence[fx.Node]) -> dict[fx.Node, int]:
    """The stage of every node: that in whose turn it comes; arguments belong to the first, attributes to no stage.

    Raises PipelineError for a stage with nothing to do.
    """
    stage, found = 0, {}
    busy: set[int] = set()
    for node in graph.nodes:
        if node in starts:
            stage += 1
        if node.op == "placeholder":
            found[node] = 0
        elif node.op != "get_attr":
            found[node] = stage
            busy.add(stage)
    for index, start in enumerate(starts):
        if index not in busy:
            raise PipelineError(f"cannot cut at {start.target!r}: nothing comes before it; leave it out")
    return found


def crossing_values(graph: fx.Graph, stage_of: Mapping[fx.Node, int], cuts: int) -> list[list[fx.Node]]:
    """For each cut, the values that a stage behind it needs from a stage before it, in the order of the graph."""
    last_use = {
        node: max((stage_of[user] for user in node.users), default=-1) for node in graph.nodes if node in stage_of
    }
    return [
        [node for node in graph.nodes if node in stage_of and stage_of[node] <= cut < last_use[node]]
        for cut in range(cuts)
    ]
