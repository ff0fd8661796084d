"""Find the runs of computation in a graph that a CUDA graph can hold.

needs       a graph in the order in which it runs; stretches of it may be compiled.
does        between two fixed nodes (launches, waits, host reads, random numbers, ...), puts what can be captured
            together: tensors of one device whose sizes are known, that nothing writes to.
guarantees  fixed nodes keep their order, and nothing moves across one; a node comes after what it takes.

    mm (sizes depend on data) mm2 relu  launch  relu2        ->        [mm relu] mm2  launch  [relu2]

Views, numbers and constants are in no run: whoever needs one makes it again.
"""

import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import fx

from annopipe.graphs import meta
from annopipe.graphs.dependencies import in_written_storage
from annopipe.graphs.fixed import is_fixed
from annopipe.graphs.ops import is_getitem
from annopipe.graphs.stage_graph import StageGraph, body, input_nodes
from annopipe.graphs.views import is_view

__all__ = ["Run", "Runs", "find_runs", "is_static", "sources_of"]

DYNAMIC = "its sizes depend on data"
ELSEWHERE = "it takes or makes what is not a tensor of the GPU"
WRITTEN = "it shares memory with what is written to"
FIXED = "communication, host reads, random numbers, writes, and what is not understood"


@dataclasses.dataclass(frozen=True)
class Run:
    """Nodes that may be captured together, in an order in which they can run."""

    nodes: tuple[fx.Node, ...]


@dataclasses.dataclass(frozen=True)
class Runs:
    """A graph as runs and single nodes.

    items: in an order in which they can run, without what is loose.
    loose: views, numbers and constants, which are made where they are needed.
    reasons: why a node that computes is in no run.
    """

    items: tuple[Run | fx.Node, ...]
    loose: frozenset[fx.Node]
    reasons: Mapping[fx.Node, str]


def find_runs(graph: StageGraph, device: str) -> Runs:
    """The runs of a graph.

    Args:
        graph: in the order in which it runs.
        device: the type of the device whose computation can be captured.
    """
    inputs, nodes = input_nodes(graph.graph), body(graph.graph)
    written = in_written_storage([*inputs, *nodes])
    if not written.isdisjoint(inputs):  # two of them may be one tensor
        written = written.union(inputs)
    loose = frozenset(node for node in nodes if node not in written and _is_loose(node))
    units = _units(nodes, loose)
    reasons: dict[fx.Node, str] = {}
    items: list[Run | fx.Node] = []
    block: list[fx.Node] = []  # the first nodes of units
    for node, members in units.items():
        if is_fixed(node):
            items += _in_runs(block, units, loose, reasons)
            block = []
            items += members
            reasons[node] = FIXED
            continue
        block.append(node)
        if why := _refusal(members, loose, written, device):
            reasons[node] = why
    items += _in_runs(block, units, loose, reasons)
    return Runs(tuple(items), loose, reasons)


def is_static(value: object, device: str) -> bool:
    """Whether a traced value is a tensor of a device whose sizes are known.

    >>> is_static(torch.ones(2), "cpu"), is_static(3, "cpu")
    (True, False)
    """
    return (
        isinstance(value, torch.Tensor)
        and value.device.type == device
        and value.layout is torch.strided
        and all(isinstance(extent, int) for extent in (*value.shape, *value.stride()))
    )


def sources_of(node: fx.Node, loose: frozenset[fx.Node]) -> list[fx.Node]:
    """What a node takes, seen through what is loose."""
    found: dict[fx.Node, None] = {}
    pending = list(node.all_input_nodes)
    while pending:
        source = pending.pop()
        if source in loose and source.all_input_nodes:
            pending += source.all_input_nodes
        else:
            found[source] = None
    return list(found)


def _is_loose(node: fx.Node) -> bool:
    return node.op == "get_attr" or (not is_fixed(node) and (is_view(node) or meta.is_number(node)))


def _units(nodes: Sequence[fx.Node], loose: frozenset[fx.Node]) -> dict[fx.Node, list[fx.Node]]:
    """What cannot be apart, by its first node: an operation and its items, a compiled call and its list."""
    first: dict[fx.Node, fx.Node] = {}
    units: dict[fx.Node, list[fx.Node]] = {}
    for node in nodes:
        if node in loose:
            continue
        whole = node.all_input_nodes[0] if is_getitem(node) else None
        if meta.marked_computation(node):
            packed = (n for n in node.all_input_nodes if meta.marked_computation(n) and n not in loose)
            whole = next(packed, None)
        first[node] = first.get(whole, node) if whole is not None else node
        units.setdefault(first[node], []).append(node)
    return units


def _refusal(members: Iterable[fx.Node], loose: frozenset[fx.Node], written: frozenset[fx.Node], device: str) -> str:
    """Why nodes cannot be captured, or ""."""
    members = list(members)
    for node in members:
        if node in written or not written.isdisjoint(sources_of(node, loose)):
            return WRITTEN
        own = meta.value(node)
        made = own if isinstance(own, (list, tuple)) else [own]
        if own is None and not meta.marked_computation(node):
            return ELSEWHERE
        taken = [meta.value(n) for n in _taken(node, loose) if n not in members]
        for value in (*(each for each in made if each is not None), *taken):
            if not is_static(value, device):
                return DYNAMIC if _is_dynamic(value) else ELSEWHERE
    return ""


def _taken(node: fx.Node, loose: frozenset[fx.Node]) -> set[fx.Node]:
    """What a node takes, with everything loose on the way."""
    found: set[fx.Node] = set()
    pending = list(node.all_input_nodes)
    while pending:
        source = pending.pop()
        if source not in found:
            found.add(source)
            pending += source.all_input_nodes if source in loose else ()
    return found


def _is_dynamic(value: object) -> bool:
    extents = (*value.shape, *value.stride()) if isinstance(value, torch.Tensor) else (value,)
    return any(isinstance(extent, torch.SymInt) for extent in extents)


def _in_runs(
    block: Sequence[fx.Node],
    units: Mapping[fx.Node, list[fx.Node]],
    loose: frozenset[fx.Node],
    reasons: Mapping[fx.Node, str],
) -> list[Run | fx.Node]:
    """The units of a block in the fewest runs: each as early as it can be, at a level of its kind."""
    unit_of = {node: first for first in block for node in units[first]}
    levels: dict[fx.Node, int] = {}
    for first in block:
        kind = int(first in reasons)  # runs have even levels, the others odd ones
        sources = {unit_of[n] for node in units[first] for n in sources_of(node, loose) if n in unit_of} - {first}
        lowest = max((levels[source] for source in sources), default=0)
        levels[first] = lowest + ((lowest - kind) % 2)
    ordered = sorted(block, key=levels.__getitem__)
    items: list[Run | fx.Node] = []
    for level, group in itertools.groupby(ordered, key=levels.__getitem__):
        members = [node for first in group for node in units[first]]
        items += [Run(tuple(members))] if level % 2 == 0 else members
    return items
