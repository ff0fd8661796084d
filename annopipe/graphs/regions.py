"""Give every node of a graph a region, a kind, a lane and a phase, and say by which rule.

Regions, first rule that fits:
    tag             the node carries an ``ap.region`` or ``ap.comm`` tag (backward nodes carry their forward op's)
    foreign tag     other code's annotation says so (annopipe.graphs.foreign_tags has the table)
    module          in a graph without our tags: the node's module is called attention, mlp, ... (same table)
    pair            a wait belongs with its launch, a getitem with the operation whose item it picks
    gradient sum    an untagged addition in a backward joins the last contribution to be computed
    producer        other untagged nodes join the last of their inputs that has a region
    consumer        what has no such input joins the first node that uses it
    untagged        the model has no tags: one region, "stage"
Lanes: the tag's nano-batch, behind the graph's own lane in a multiplexed graph ("F0"). A node placed by rule is in a
nano-batch only if all its inputs are in it. A region is only a label: it never adds a dependency.
"""

import dataclasses
from collections.abc import Iterable

from torch import fx

from annopipe.errors import GraphError
from annopipe.graphs import meta
from annopipe.graphs.backward_split import input_half
from annopipe.graphs.host_copies import copies_to_host
from annopipe.graphs.meta import Placement
from annopipe.graphs.ops import is_getitem, launch_of, note_declarations, traits, view_chain
from annopipe.graphs.stage_graph import StageGraph, body, output_nodes

__all__ = ["RegionRow", "place", "region_table"]

_WHOLE = "stage"


@dataclasses.dataclass(frozen=True, slots=True)
class RegionRow:
    """One node of a region table.

    kind: compute, launch (starts a collective), wait (completes one) or host (reads a value from the device).
    phase: forward, input_grad, weight_grad (also inside a full backward), recompute, or other.
    rule: how the region was assigned; the rules are listed in ``annopipe.graphs.regions``.
    """

    node: fx.Node
    region: str
    kind: str
    lane: str
    phase: str
    rule: str


def region_table(graph: StageGraph) -> list[RegionRow]:
    """One row for every node of ``graph``, in program order.

    >>> import torch, annopipe as ap
    >>> graphs = ap.trace(torch.nn.Linear(2, 2), (torch.ones(1, 2),))
    >>> sorted({row.phase for row in ap.region_table(graphs.backward)})
    ['weight_grad']
    """
    if not isinstance(graph, StageGraph):
        raise GraphError(
            f"region_table takes a stage graph, got {type(graph).__name__}: pass graphs.forward or graphs.backward"
        )
    place(graph)
    rows = []
    for node in body(graph.graph):
        at = meta.placed(node)
        rows.append(RegionRow(node, at.region, at.kind, at.lane, at.phase, at.rule))
    return rows


def place(graph: StageGraph) -> None:
    """Assign and record a placement on every node of ``graph`` that has none."""
    nodes = body(graph.graph)
    if all(meta.placement(node) is not None for node in nodes):
        return
    note_declarations(nodes)
    phases = _phases(graph, nodes)
    position = {node: index for index, node in enumerate(nodes)}
    regions: dict[fx.Node, tuple[str, str, str]] = {}  # region, lane, rule
    for node in nodes:
        found = _own_region(node) or _joined(node, regions, position)
        if found is not None:
            regions[node] = found
    for node in reversed(nodes):
        if node not in regions:
            users = [user for user in node.users if user in regions]
            first = min(users, key=position.__getitem__, default=None)
            region, lane, rule = (_WHOLE, "", "untagged") if first is None else regions[first]
            regions[node] = (region, meta.tag_lane(node) or lane, rule if rule == "untagged" else "consumer")
    for node in nodes:
        if meta.placement(node) is None:
            region, lane, rule = regions[node]
            meta.set_placement(node, Placement(region, _kind(node), lane, phases[node], rule, node.name))


def _own_region(node: fx.Node) -> tuple[str, str, str] | None:
    region = meta.tag_region(node)
    return (region, meta.tag_lane(node), meta.tag_rule(node)) if region else None


def _joined(
    node: fx.Node, regions: dict[fx.Node, tuple[str, str, str]], position: dict[fx.Node, int]
) -> tuple[str, str, str] | None:
    inputs = [source for source in node.all_input_nodes if source in regions]
    if not inputs:
        return None
    if is_getitem(node) or launch_of(node) is not None:
        region, lane, _ = regions[inputs[0]]
        return region, lane, "pair"
    region, lane, _ = regions[max(inputs, key=position.__getitem__)]
    lanes = {regions[source][1] for source in inputs}
    own = meta.tag_lane(node) or (lane if len(lanes) == 1 else "")
    summed = meta.is_traced_in_backward(node) and getattr(node.target, "__name__", "") == "add.Tensor"
    return region, own, "gradient sum" if summed else "producer"


def _kind(node: fx.Node) -> str:
    known = traits(node)
    if known.launch:
        return "launch"
    if known.wait:
        return "wait" if launch_of(node) is not None else "compute"
    return "host" if known.host_read or copies_to_host(node) else "compute"


def _phases(graph: StageGraph, nodes: Iterable[fx.Node]) -> dict[fx.Node, str]:
    roles = {port.role for port in graph.outputs}
    gradients = {"param_grad", "input_grad", "unreduced"}
    is_backward = any(p.role == "tangent" for p in graph.inputs) or not roles.isdisjoint(gradients)
    if not is_backward:
        return dict.fromkeys(nodes, "forward")
    results = zip(graph.outputs, output_nodes(graph.graph), strict=True)
    half = input_half(graph.graph, [n for p, n in results if p.role == "input_grad" and isinstance(n, fx.Node)])
    phases = {}
    for node in nodes:
        again = meta.is_traced_in_forward(node) and view_chain(node)[0] is node and node.op == "call_function"
        phases[node] = "recompute" if again else "input_grad" if node in half else "weight_grad"
    return phases
