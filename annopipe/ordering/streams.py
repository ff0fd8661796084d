"""Which nodes of a problem run on which CUDA stream, and the graph that runs so.

Tags say so (``ap.region(name, stream="side")``), and so does ``ap.overlap(..., streams={selector: stream})``, whose
selectors are

    W                 all weight gradients
    host              what reads values of the device, or copies them to the host
    region            a region's nodes in all lanes: "experts", "moe/permute"; experts.W: their weight gradients
    LANE.region[.W]   the same in one lane, as in a pattern

Of two selectors that fit, the later one counts; selectors go before tags. Launches and waits of collectives stay on
the stream that the graph is called on, unless a tag says otherwise: what a collective does, it does on its own stream.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import torch
from torch import fx

from annopipe.annotate import check_name
from annopipe.errors import GraphError, OrderError
from annopipe.graphs import meta
from annopipe.graphs.ops import is_getitem
from annopipe.graphs.region_paths import ends
from annopipe.graphs.stage_graph import StageGraph, body
from annopipe.graphs.streams import CudaStreams, StreamPlan, stream_plan, with_stream_calls
from annopipe.ordering.describing import problem_of
from annopipe.ordering.problem import OverlapNode, OverlapProblem

__all__ = ["issued_on_streams", "on_streams", "on_tagged_streams", "streams_of"]

_WEIGHTS, _HOST = "W", "host"


def on_streams(problem: OverlapProblem, streams: Mapping[str, str]) -> OverlapProblem:
    """The problem with the streams that selectors give to its nodes.

    Raises:
        OrderError: no mapping from selectors to names, a selector that means no node, a stream whose name is none.
    """
    if not isinstance(streams, Mapping) or not all(isinstance(text, str) for pair in streams.items() for text in pair):
        raise OrderError(f'streams={streams!r}: give names of streams by selector, such as {{"W": "side"}}; "" is none')
    chosen: dict[int, str] = {}
    for selector, stream in streams.items():
        if stream:
            try:
                check_name(stream)
            except GraphError:
                raise OrderError(
                    f"streams={{{selector!r}: {stream!r}}}: the name of a stream has letters, digits and _ - [ ], "
                    "with / between levels"
                ) from None
        found = [node for node in problem.nodes if _means(selector, node)]
        if not found:
            raise OrderError(f"streams={{{selector!r}: ...}} means no node; {_there_is(problem)}")
        chosen |= dict.fromkeys([node.index for node in found], stream)
    nodes = [dataclasses.replace(node, stream=chosen.get(node.index, node.stream)) for node in problem.nodes]
    return dataclasses.replace(problem, nodes=tuple(nodes))


def streams_of(problem: OverlapProblem, order: Sequence[int], graph: StageGraph) -> StreamPlan | None:
    """Who waits for whom when the nodes are issued in an order; None if all run on the calling stream.

    Args:
        problem: of the graph.
        order: as positions in its nodes.
        graph: in that order.
    """
    if not any(node.stream for node in problem.nodes):
        return None
    place = {index: position for position, index in enumerate(order)}
    names: dict[fx.Node, str] = {}
    for node, index in zip(body(graph.graph), order, strict=True):
        whole = node.args[0] if is_getitem(node) else None
        own = problem.nodes[index].stream
        names[node] = names.get(whole, own) if isinstance(whole, fx.Node) else own  # a part is no work of its own
    return stream_plan(
        [*names.values()], [[place[source] for source in problem.dependencies[index]] for index in order]
    )


def issued_on_streams(graph: StageGraph, plan: StreamPlan | None) -> StageGraph:
    """The graph as it runs on its device: with calls for its streams on CUDA, itself elsewhere and without a plan."""
    devices = {port.device for port in graph.inputs if port.device.startswith("cuda")}
    if plan is None or not devices:
        return graph
    device = torch.device("cuda", torch.cuda.current_device())
    return with_stream_calls(graph, plan, CudaStreams(device))


def on_tagged_streams(graph: StageGraph) -> StageGraph:
    """A graph alone, in its own order, as it runs on its device: on the streams of its tags, if it has any."""
    if not any(meta.tag_stream(node) for node in body(graph.graph)):
        return graph
    problem = problem_of(graph)
    return issued_on_streams(graph, streams_of(problem, range(len(problem.nodes)), graph))


def _means(selector: str, node: OverlapNode) -> bool:
    weights = selector == _WEIGHTS or selector.endswith(f".{_WEIGHTS}")
    if weights and node.phase != "weight_grad":
        return False
    if selector == _WEIGHTS:
        return node.kind == "compute"
    if selector == _HOST:
        return node.kind == _HOST
    lane, dot, region = (selector[: -len(_WEIGHTS) - 1] if weights else selector).rpartition(".")
    return bool(ends(node.region, region)) and (not dot or node.lane == lane) and node.kind in ("compute", _HOST)


def _there_is(problem: OverlapProblem) -> str:
    regions = ", ".join(sorted({part for region in problem.regions for part in region.split("/")})[:12])
    lanes = ", ".join(filter(None, problem.lanes))
    return (
        f"give W, host, a region ({regions})" + (f", LANE.region with a lane of {lanes}" if lanes else "") + ", or "
        "region.W for weight gradients"
    )
