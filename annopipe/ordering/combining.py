"""Combine the graphs of several stages into one plan, with the costs of their nodes, however these are given.

The runtime makes its combined graphs here and the costs of a schedule's actions come from here: both have one plan.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import torch.distributed as dist

from annopipe.costs.node_costs import NodeCosts
from annopipe.errors import CostError, GraphError
from annopipe.graphs import meta
from annopipe.graphs.multiplexing import multiplex
from annopipe.graphs.regions import place
from annopipe.graphs.stage_graph import StageGraph, body
from annopipe.ordering.describing import carries_values
from annopipe.ordering.plan import OverlapPlan
from annopipe.ordering.planning import overlap
from annopipe.ordering.registry import Policy, of_one_kind_only

__all__ = ["Part", "StageNodeCosts", "combine", "has_nano_batches", "lanes_of", "part_costs"]

# One for all stages, one per stage, or a function that is asked for each graph, such as `annopipe.costs.roofline`.
StageNodeCosts = NodeCosts | Mapping[int, NodeCosts] | Callable[[StageGraph], NodeCosts]


@dataclasses.dataclass(frozen=True)
class Part:
    """The graph of one action's kind (F, B, I or W) on one stage.

    share: how much of the microbatch that node costs are of it works on; less than 1 for a nano-batch.
    """

    kind: str
    stage: int
    graph: StageGraph
    share: float = 1.0


def lanes_of(kinds: Sequence[str]) -> list[str]:
    """One name per part: its kind, with a number where a kind comes twice.

    >>> lanes_of(["F", "B", "B"])
    ['F', 'B0', 'B1']
    """
    return [
        kind if kinds.count(kind) == 1 else f"{kind}{kinds[:index].count(kind)}" for index, kind in enumerate(kinds)
    ]


def combine(
    parts: Sequence[Part],
    policy: str | Policy = "auto",
    node_costs: StageNodeCosts | None = None,
    group: dist.ProcessGroup | None = None,
) -> OverlapPlan:
    """The plan of graphs that run together, one lane each; see ``overlap`` for the policy, the group and the errors.

    One graph alone may be planned, too, for its nano-batches. Graphs of one kind take of a pattern what they have.

    Costs are those that ``part_costs`` finds for each part; None is the roofline of the local device.

    >>> import torch, annopipe as ap
    >>> graphs = ap.trace(torch.nn.Linear(2, 2), (torch.ones(1, 2),))
    >>> combine([Part("F", 0, graphs.forward), Part("B", 0, graphs.backward)], "alternate").problem.lanes
    ('F', 'B')
    """
    if not parts:
        raise GraphError("nothing to combine: no part has a graph")
    lanes = lanes_of([part.kind for part in parts])
    both = multiplex(*(part.graph for part in parts), lanes=lanes)
    costs = None
    if node_costs is not None:
        first, *others = [
            part_costs(part, node_costs, lane).in_lane(lane) for part, lane in zip(parts, lanes, strict=True)
        ]
        for more in others:
            first = first | more
        costs = first
    of_one_kind = len({part.kind for part in parts}) == 1
    return overlap(both, policy=of_one_kind_only(policy) if of_one_kind else policy, costs=costs, group=group)


def has_nano_batches(graph: StageGraph | None) -> bool:
    """Whether several nano-batches of the graph communicate, so that it is worth ordering when it runs alone.

    >>> import torch, annopipe as ap
    >>> has_nano_batches(ap.trace(torch.nn.Linear(2, 2), (torch.ones(1, 2),)).forward)
    False
    """
    if graph is None or graph.launch_count < 2:
        return False
    place(graph)
    placements = [meta.placed(node) for node in body(graph.graph)]
    return len({at.lane for at in placements if at.kind == "launch"}) > 1


def part_costs(part: Part, node_costs: StageNodeCosts, lane: str = "") -> NodeCosts:
    """The costs of one graph's nodes, by their own keys.

    For node "mm" of a backward the key may be "B.mm", as in the costs of a combined graph, or "mm"; nodes of I and W
    also have the costs of the same nodes of B. A part that is a share of a microbatch takes that share of the time of
    computation, and of what transfers of values take beyond their latency; issuing, host reads and exchanges of counts
    take the same time for any share.

    Raises CostError when a node has none.
    """
    given = _of_stage(part, node_costs)
    place(part.graph)
    prefixes = dict.fromkeys(
        [f"{lane}." if lane else f"{part.kind}.", f"{part.kind}.", *(["B."] if part.kind in ("I", "W") else []), ""]
    )
    found: dict[str, str] = {}
    shrinking: set[str] = set()
    for node in body(part.graph.graph):
        key, kind = meta.placed(node).key, meta.placed(node).kind
        names = [prefix + key for prefix in prefixes if prefix + key in given.seconds]
        if names:
            found[key] = names[0]
        elif kind != "wait":
            raise CostError(
                f"no cost for {key} of {part.kind} on stage {part.stage}: give it as {f'{part.kind}.{key}'!r} (the "
                "costs of a combined graph) or as its bare name, or one NodeCosts for each stage"
            )
        if kind == "compute" or (kind == "launch" and carries_values(node)):
            shrinking.add(key)
    seconds, latency, issue = (
        {key: table[name] for key, name in found.items() if name in table}
        for table in (given.seconds, given.latency, given.issue)
    )
    if part.share != 1.0:
        for key in shrinking & seconds.keys():
            fixed = min(latency.get(key, 0.0), seconds[key])
            seconds[key] = fixed + (seconds[key] - fixed) * part.share
    return NodeCosts(seconds, latency, issue, given.network, given.source)


def _of_stage(part: Part, node_costs: StageNodeCosts) -> NodeCosts:
    if isinstance(node_costs, NodeCosts):
        return node_costs
    if callable(node_costs):
        return node_costs(part.graph)
    if part.stage not in node_costs:
        raise CostError(f"no node costs for stage {part.stage}; there are some for {sorted(node_costs) or 'none'}")
    return node_costs[part.stage]
