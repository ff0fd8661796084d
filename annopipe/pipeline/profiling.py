"""Adapter: ranges for torch.profiler, made only while it records (private in torch.autograd).

An action's range (``labels``) is named by its text, "0F1"; inside a graph, consecutive nodes of one region
are a range too, named "annopipe/" and the region, so that traces show stage, microbatch and region. A graph with ranges
is another module, made when a profiler first meets it: without a profiler, nothing is slower.
"""

import torch
from torch import fx
from torch.autograd import _profiler_enabled

from annopipe.graphs import meta
from annopipe.graphs.stage_graph import StageGraph, body

__all__ = ["is_profiled", "with_ranges"]


def is_profiled() -> bool:
    """Whether a profiler records on this thread."""
    return bool(_profiler_enabled())


def with_ranges(graph: StageGraph) -> StageGraph:
    """The graph as one that opens and closes a range where the region changes; its order is the same."""
    copy = graph.copy()
    opened, current = None, ""
    nodes = body(copy.graph)
    for node in nodes:
        name = _range_name(node)
        if name != current:
            with copy.graph.inserting_before(node):
                if opened is not None:
                    copy.graph.call_function(_close, (opened,))
                opened = copy.graph.call_function(_open, (name,)) if name else None
            current = name
    if opened is not None:
        with copy.graph.inserting_after(nodes[-1]):
            copy.graph.call_function(_close, (opened,))
    return copy


def _range_name(node: fx.Node) -> str:
    place = meta.placement(node)
    if place is None or not place.region:
        return ""
    return f"annopipe/{place.lane + ':' if place.lane else ''}{place.region}"


def _open(name: str) -> torch.profiler.record_function:
    found = torch.profiler.record_function(name)
    found.__enter__()
    return found


def _close(opened: torch.profiler.record_function) -> None:
    opened.__exit__(None, None, None)
