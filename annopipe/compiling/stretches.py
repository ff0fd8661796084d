"""Cut a graph into stretches of computation at places that do not move with the order of its nodes.

needs       a stage graph; the names of its nodes in program order.
does        finds the fixed nodes (launches, waits, host reads, random numbers, writes, fences), then puts computation
            of one region and phase that needs the same fixed nodes, and that the same fixed nodes need, into a stretch.
guarantees  the stretches are the same for every legal order of the graph, alone or in a lane beside others; in every
            order each of them can run as a whole, with the fixed nodes in exactly that order.

    mm relu launch mm wait mul mul        ->        [mm relu] launch [mm] wait [mul mul]

Why an order always exists: a stretch must come behind what its nodes need and before what needs them. Were a fixed node
that one of them needs behind a fixed node that needs another of them, in some order, then the second would not need the
first; but all nodes of a stretch need the same.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from torch import fx

from annopipe.compiling.refusals import lookup_refusal, refusal
from annopipe.errors import GraphError
from annopipe.graphs import meta
from annopipe.graphs.dependencies import in_written_storage, predecessors
from annopipe.graphs.fixed import is_fixed
from annopipe.graphs.ops import is_getitem
from annopipe.graphs.regions import place
from annopipe.graphs.stage_graph import StageGraph, body, input_nodes
from annopipe.graphs.views import is_view

__all__ = ["Cut", "Stretch", "cut"]


@dataclasses.dataclass(frozen=True)
class Stretch:
    """Nodes that are compiled together, in program order.

    region, phase, lane: of all of them.  needs: the fixed nodes before it, as a set of bits.
    """

    nodes: tuple[fx.Node, ...]
    region: str
    phase: str
    lane: str
    needs: int


@dataclasses.dataclass(frozen=True)
class Cut:
    """A graph's nodes by what happens to them.

    program: all nodes of the graph in program order.
    stretches: what may be compiled.
    transparent: views and numbers; a stretch that uses one makes the view again, or takes the number.
    eager: the other computation, and why it runs eagerly.
    fixed: launches, waits and the others that stretches do not cross.
    needs: of each node, the fixed nodes that it needs, as a set of bits; a fixed node needs itself.
    before: of each node, the positions in ``program`` of those that come before it.
    """

    program: tuple[fx.Node, ...]
    stretches: tuple[Stretch, ...]
    transparent: frozenset[fx.Node]
    eager: Mapping[fx.Node, str]
    fixed: frozenset[fx.Node]
    needs: Mapping[fx.Node, int]
    before: Sequence[Sequence[int]]


def cut(graph: StageGraph, program: Sequence[str] | None = None) -> Cut:
    """The stretches of a graph.

    Args:
        graph: in any legal order.
        program: the keys of its nodes in program order; None when the graph is in that order.

    Raises GraphError for a program that lacks a node.
    """
    place(graph)
    nodes = body(graph.graph)
    if program is not None:
        rank = {key: position for position, key in enumerate(program)}
        if unknown := sorted({meta.placed(node).key for node in nodes} - rank.keys()):
            raise GraphError(f"the program lacks node {unknown[0]}: give the keys of all nodes, as plan.program_order")
        nodes.sort(key=lambda node: rank[meta.placed(node).key])
    before = predecessors(nodes)
    written = in_written_storage(nodes)
    fixed = frozenset(node for node in nodes if is_fixed(node))
    transparent = frozenset(
        node for node in nodes if node not in fixed and node not in written and (is_view(node) or meta.is_number(node))
    )
    ports = zip(input_nodes(graph.graph), graph.inputs, strict=True)
    given = {node for node, port in ports if port.role == "input"}
    eager: dict[fx.Node, str] = {}
    for node in nodes:
        if node in fixed or node in transparent:
            continue
        source = node.all_input_nodes[0] if is_getitem(node) else None
        if source is not None and (source in fixed or source in eager):
            eager[node] = eager.get(source, "a result of communication")
        elif node in written:
            eager[node] = "it shares memory with what is written to"
        elif why := refusal(node) or lookup_refusal(node, given):
            eager[node] = why
    needs, needed = _around(nodes, before, fixed)
    left = [node for node in nodes if node not in fixed and node not in transparent and node not in eager]
    groups = _sunk(graph, _groups(nodes, left, transparent, eager, needs, needed), transparent, _held(nodes, before))
    position = {node: index for index, node in enumerate(nodes)}
    ordered = (sorted(group, key=position.__getitem__) for group in groups if group)
    stretches = tuple(Stretch(tuple(group), *_place(group[0]), _union(needs[n] for n in group)) for group in ordered)
    return Cut(tuple(nodes), stretches, transparent, eager, fixed, needs, before)


def _around(
    nodes: Sequence[fx.Node], before: Sequence[Sequence[int]], fixed: Iterable[fx.Node]
) -> tuple[dict[fx.Node, int], dict[fx.Node, int]]:
    """For each node, as sets of bits: the fixed nodes that it needs, or is, and those that need it."""
    fixed = set(fixed)
    needs, needed = [0] * len(nodes), [0] * len(nodes)
    own = {index: 1 << number for number, index in enumerate(i for i, node in enumerate(nodes) if node in fixed)}
    for index in range(len(nodes)):
        needs[index] = own.get(index, 0)
        for source in before[index]:
            needs[index] |= needs[source]
    for index in range(len(nodes) - 1, -1, -1):
        for source in before[index]:
            needed[source] |= needed[index] | own.get(index, 0)
    return dict(zip(nodes, needs, strict=True)), dict(zip(nodes, needed, strict=True))


def _groups(
    nodes: Sequence[fx.Node],
    left: Sequence[fx.Node],
    transparent: frozenset[fx.Node],
    eager: Mapping[fx.Node, str],
    needs: Mapping[fx.Node, int],
    needed: Mapping[fx.Node, int],
) -> list[list[fx.Node]]:
    """Nodes that run together.

    Within one class (the same fixed nodes before and behind), each has a level: one more than what it takes of other
    groups. So no two groups need each other: levels never fall along an edge, and grow between groups.
    """
    members = set(left)
    sources: dict[fx.Node, tuple[fx.Node, ...]] = {}  # what a node takes, seen through transparent ones
    group_of: dict[fx.Node, tuple[object, ...]] = {}
    level: dict[fx.Node, int] = {}
    found: dict[tuple[object, ...], list[fx.Node]] = {}
    for node in nodes:
        taken: dict[fx.Node, None] = {}
        for source in node.all_input_nodes:
            taken.update(dict.fromkeys(sources.get(source, ()) if source in transparent else (source,)))
        sources[node] = tuple(taken)
        if node not in members and node not in eager:
            continue
        producer = node.all_input_nodes[0] if is_getitem(node) else None
        if producer is not None and producer in group_of:  # a tuple does not leave its stretch
            group_of[node], level[node] = group_of[producer], level[producer]
            if node in members:
                found[group_of[node]].append(node)
            continue
        at = meta.placed(node)
        around = needs[node], needed[node], at.lane
        own: tuple[object, ...] = (at.region, at.phase) if node in members else (node,)
        height = 0
        for source in taken:
            if source in level and group_of[source][0] == around:
                height = max(height, level[source] + (group_of[source][1] != own))
        group_of[node], level[node] = (around, own, height), height
        if node in members:
            found.setdefault(group_of[node], []).append(node)
    return list(found.values())


def _held(nodes: Sequence[fx.Node], before: Sequence[Sequence[int]]) -> set[fx.Node]:
    """Those that must come before another node that does not use them, such as a read before a write."""
    return {
        nodes[source]
        for node, earlier in zip(nodes, before, strict=True)
        for source in earlier
        if nodes[source] not in node.all_input_nodes
    }


def _sunk(
    graph: StageGraph, groups: list[list[fx.Node]], transparent: frozenset[fx.Node], held: set[fx.Node]
) -> list[list[fx.Node]]:
    """The groups, where a node that only one other group of its region and phase uses has moved to that group.

    It is computed later then, and what it takes is there: nothing else has needed it before.
    """
    group_of = {node: number for number, group in enumerate(groups) for node in group}
    output = graph.graph.output_node()
    sunk = [list[fx.Node]() for _ in groups]
    for node in reversed(list(graph.graph.nodes)):
        own = group_of.get(node)
        if own is None or node in held:
            continue
        users = _users(node, transparent)
        found = {group_of.get(user, -1) for user in users}
        (target,) = found if len(found) == 1 else (own,)
        pair = is_getitem(node) or any(is_getitem(user) for user in users)
        if output not in users and target >= 0 and not pair and _place(groups[target][0]) == _place(node):
            group_of[node] = target
    for node, number in group_of.items():
        sunk[number].append(node)
    return sunk


def _users(node: fx.Node, transparent: frozenset[fx.Node]) -> set[fx.Node]:
    """Who uses a node, seen through views and numbers."""
    found: set[fx.Node] = set()
    pending = list(node.users)
    while pending:
        user = pending.pop()
        if user in transparent:
            pending += user.users
        else:
            found.add(user)
    return found


def _place(node: fx.Node) -> tuple[str, str, str]:
    at = meta.placed(node)
    return at.region, at.phase, at.lane


def _union(sets: Iterable[int]) -> int:
    found = 0
    for each in sets:
        found |= each
    return found
