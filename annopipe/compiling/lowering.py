"""Put compiled stretches in the place of their nodes, in the order that the graph is in.

needs       a graph in a legal order, its cut, and a function for each stretch that is compiled.
does        orders stretches and single nodes, and writes a graph that calls a stretch as one node.
guarantees  fixed nodes (launches, waits, host reads, ...) run in exactly the graph's order; a stretch runs where the
            middle of its nodes was, or earlier where a fixed node needs it, or later where it needs one.

    F.mm B.launch F.relu B.wait B.mul        ->        F.[mm relu] B.launch B.wait B.mul
"""

import heapq
import itertools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from annopipe.compiling.forms import Bound, Compiled, Source, strides_of
from annopipe.compiling.stretches import Cut
from annopipe.graphs import meta
from annopipe.graphs.stage_graph import StageGraph, body, copy_nodes, input_nodes, output_nodes

__all__ = ["lowered", "packing"]


def lowered(graph: StageGraph, cut: Cut, stretches: Sequence[tuple[Bound, Compiled]]) -> StageGraph:
    """The graph with compiled stretches."""
    units = _units(cut, [bound for bound, _ in stretches])
    order = _order(graph, cut, units, [bound for bound, _ in stretches])
    writer = _Writer(graph, cut, stretches)
    for number in order:
        writer.write(number if number < len(stretches) else units[number][0])
    return StageGraph(writer.finish(), graph.inputs, graph.outputs, attributes=graph.attributes, guards=graph.guards)


def _units(cut: Cut, bounds: Sequence[Bound]) -> list[tuple[fx.Node, ...]]:
    """What is ordered: the stretches, then every other node that is not transparent."""
    inside = {node for bound in bounds for node in bound.stretch.nodes}
    alone = [node for node in cut.program if node not in inside and node not in cut.transparent]
    return [*(bound.stretch.nodes for bound in bounds), *((node,) for node in alone)]


def _order(graph: StageGraph, cut: Cut, units: Sequence[tuple[fx.Node, ...]], bounds: Sequence[Bound]) -> list[int]:
    position = {node: index for index, node in enumerate(body(graph.graph))}
    before = _dependencies(cut, units, bounds)
    number_of = {node: number for number, nodes in enumerate(units) for node in nodes}
    chain = sorted((number_of[node] for node in cut.fixed), key=lambda number: position[units[number][0]])
    for earlier, later in itertools.pairwise(chain):
        before[later].add(earlier)
    after: list[list[int]] = [[] for _ in units]
    for number, sources in enumerate(before):
        for source in sources:
            after[source].append(number)
    rank = [float(sorted(position[node] for node in nodes)[len(nodes) // 2]) for nodes in units]
    return _by_rank(before, after, rank)


def _dependencies(cut: Cut, units: Sequence[tuple[fx.Node, ...]], bounds: Sequence[Bound]) -> list[set[int]]:
    number_of = {node: number for number, nodes in enumerate(units) for node in nodes}
    through: dict[fx.Node, set[int]] = {}  # of transparent nodes, the units behind them

    def units_behind(node: fx.Node) -> set[int]:
        return {number_of[node]} if node in number_of else through.get(node, set())

    before: list[set[int]] = [set() for _ in units]
    for index, node in enumerate(cut.program):
        found = set[int]().union(*(units_behind(cut.program[source]) for source in cut.before[index]))
        if node in number_of:
            before[number_of[node]] |= found
        else:
            through[node] = found
    for number, bound in enumerate(bounds):
        for node, _ in bound.inputs:
            before[number] |= units_behind(node)
    for number, earlier in enumerate(before):
        earlier.discard(number)
    return before


def _by_rank(before: Sequence[set[int]], after: Sequence[Sequence[int]], rank: Sequence[float]) -> list[int]:
    """An order that keeps all dependencies: the lowest rank first, and what a lower one needs with it."""
    pending = [len(earlier) for earlier in before]
    ready = [number for number, count in enumerate(pending) if not count]
    topological = []
    while ready:
        number = ready.pop()
        topological.append(number)
        for later in after[number]:
            pending[later] -= 1
            if not pending[later]:
                ready.append(later)
    urgent = list(rank)
    for number in reversed(topological):
        urgent[number] = min([urgent[number], *(urgent[later] for later in after[number])])
    pending = [len(earlier) for earlier in before]
    heap = [(urgent[number], rank[number], number) for number, count in enumerate(pending) if not count]
    heapq.heapify(heap)
    order = []
    while heap:
        *_, number = heapq.heappop(heap)
        order.append(number)
        for later in after[number]:
            pending[later] -= 1
            if not pending[later]:
                heapq.heappush(heap, (urgent[later], rank[later], later))
    return order


class _Writer:
    """Writes the new graph, node by node."""

    def __init__(self, graph: StageGraph, cut: Cut, stretches: Sequence[tuple[Bound, Compiled]]) -> None:
        self._old, self._cut, self._stretches = graph, cut, stretches
        self._compiled = frozenset(node for bound, _ in stretches for node in bound.outputs)
        self._graph = fx.Graph()
        self._made: dict[fx.Node, fx.Node] = {}
        copy_nodes(self._graph, input_nodes(graph.graph), self._made)

    def write(self, what: int | fx.Node) -> None:
        """A stretch, or a node."""
        if isinstance(what, fx.Node):
            self._write_node(what)
        else:
            self._write_stretch(*self._stretches[what])

    def finish(self) -> fx.Graph:
        """The graph, with its results."""
        results = output_nodes(self._old.graph)
        self._graph.output(tuple(self._new(node) if isinstance(node, fx.Node) else node for node in results))
        left = [node for node in self._cut.program if node in self._cut.transparent and node not in self._made]
        call = next((node for node in self._graph.nodes if meta.stands_in(node)), None)
        if call is not None:  # views that only stretches use take no time, but somebody has to know of them
            meta.set_shares(call, {**meta.shares(call), **{meta.placed(node).key: 0.0 for node in left}})
        return self._graph

    def _write_node(self, node: fx.Node) -> None:
        for source in node.all_input_nodes:
            self._new(source)
        copy_nodes(self._graph, [node], self._made)

    def _new(self, node: fx.Node) -> fx.Node:
        """The node's copy; a view or number is written where it is first needed."""
        if node not in self._made:
            self._write_node(node)
        return self._made[node]

    def _write_stretch(self, bound: Bound, run: Compiled) -> None:
        values = [self._input(source, bound) for source in bound.inputs]
        strides = [self._strides(source) for source in bound.inputs]
        # One list, which is emptied: else all inputs would be held until the end.
        packed = self._call(packing(strides), tuple(values), bound)
        results = self._call(run, (packed,), bound)
        for index, node in enumerate(bound.outputs):
            item = self._call(operator.getitem, (results, index), bound)
            item.meta = dict(node.meta)
            self._made[node] = item

    def _call(self, target: Callable[..., Any], args: tuple[Any, ...], bound: Bound) -> fx.Node:
        node = self._graph.call_function(target, args)
        inside = bound.stretch.nodes
        meta.set_placement(node, meta.placed(inside[0]))
        meta.set_shares(node, {meta.placed(each).key: 1 / len(inside) for each in inside})
        meta.mark_computation(node)
        return node

    def _input(self, source: Source, bound: Bound) -> fx.Node:
        node, dim = source
        if dim is None:
            return self._new(node)
        size = self._call(torch.ops.aten.sym_size.int, (self._new(node), dim), bound)
        meta.set_value(size, meta.value(node).shape[dim])
        return size

    def _strides(self, source: Source) -> tuple[int, ...] | None:
        """What the strides have to be, where nothing else sees to it.

        Real operations may lay out their results in another way than traced ones, and so may callers; parameters may
        have been replaced (``load_state_dict(assign=True)``, ``to(memory_format=...)``).
        """
        node, dim = source
        value = meta.value(node)
        if dim is not None or not isinstance(value, torch.Tensor) or node in self._compiled:
            return None
        strides = tuple(stride for stride in strides_of(value) if isinstance(stride, int))
        return strides if len(strides) == value.dim() else None


def packing(strides: Sequence[tuple[int, ...] | None]) -> Callable[..., list[Any]]:
    """A function that makes a list of its arguments, laid out as they have to be."""
    checked = [(index, own) for index, own in enumerate(strides) if own is not None]
    if not checked:
        return _pack

    def pack_checked(*values: Any) -> list[Any]:
        found = list(values)
        for index, own in checked:
            value = found[index]
            if value.stride() != own or value.is_neg():  # as x.conj().imag: its memory has the other sign
                found[index] = _laid_out(value.resolve_neg(), own)
        return found

    return pack_checked


def _pack(*values: Any) -> list[Any]:
    return list(values)


def _laid_out(value: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    """A copy with these strides; the value itself where only strides differ that nobody uses."""
    if value.numel() == 0 or all(
        length < 2 or have == want for length, have, want in zip(value.shape, value.stride(), strides, strict=True)
    ):
        return value
    return torch.empty_strided(value.shape, strides, dtype=value.dtype, device=value.device).copy_(value)
