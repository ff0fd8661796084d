"""Write a graph that calls captured runs as one node each.

needs       a graph, and its runs.
does        decides of each run whether it is worth capturing, and writes the nodes in the runs' order.
guarantees  what runs operation by operation sees the same values as before; no result of the graph, and nothing that
            may share memory with one, is memory that a recording writes to again, save results that are lent.

    x, w -> mm relu (saved) add -> out        ->        begin(w)  [x'] = stage(x)  [saved, out] = run(0, (x', w))
"""

import dataclasses
import operator
from collections.abc import Collection, Sequence
from typing import Any

from torch import fx

from annopipe.capturing.report import RunReport
from annopipe.capturing.runs import Run, Runs, sources_of
from annopipe.capturing.tape import Segment
from annopipe.capturing.worth import NOT_WORTH, Weight
from annopipe.graphs import meta
from annopipe.graphs.ops import is_getitem, sharing_arguments
from annopipe.graphs.stage_graph import StageGraph, copy_nodes, input_nodes, output_nodes
from annopipe.graphs.views import is_view

__all__ = ["HANDLE", "Writer"]

HANDLE = "annopipe_tape"
_STAYING = frozenset({"param", "buffer"})


class Writer:
    """Writes the graph.

    Attributes:
        segments: the runs that are captured.
        reports: what became of each run.

    Args:
        graph: as it runs now.
        runs: of the graph.
        lent: roles of output ports whose values the caller has no use for after the next call.
    """

    def __init__(self, graph: StageGraph, runs: Runs, lent: Collection[str]) -> None:
        self.segments: list[Segment] = []
        self.reports: list[RunReport] = []
        self._old, self._runs = graph, runs
        self._members = {member for item in runs.items if isinstance(item, Run) for member in item.nodes}
        self._ports = dict(zip(input_nodes(graph.graph), graph.inputs, strict=True))
        results = zip(graph.outputs, output_nodes(graph.graph), strict=True)
        self._lasting = {node for port, node in results if port.role not in lent and isinstance(node, fx.Node)}
        self._graph = fx.Graph()
        self._outside: dict[fx.Node, fx.Node] = {}  # where nodes that are not captured find a value
        self._inside: dict[fx.Node, fx.Node] = {}  # and where runs do
        self._staying: list[fx.Node] = []

    def written(self) -> fx.Graph:
        """The new graph; the old one when nothing is captured."""
        copy_nodes(self._graph, input_nodes(self._old.graph), self._outside)
        handle = self._graph.get_attr(HANDLE)
        begin = self._graph.call_method("begin", (handle,))
        meta.mark_computation(begin)
        for item in self._runs.items:
            if isinstance(item, Run):
                self._write_run(item, handle)
            else:
                self._find(item)
        begin.args = (handle, *dict.fromkeys(self._staying))
        results = output_nodes(self._old.graph)
        self._graph.output(tuple(self._find(node) if isinstance(node, fx.Node) else node for node in results))
        return self._graph if self.segments else self._old.graph

    def _find(self, node: fx.Node) -> fx.Node:
        """The node, for what is not captured; what is loose is written where it is first needed."""
        if node not in self._outside:
            for source in node.all_input_nodes:
                self._find(source)
            copy_nodes(self._graph, [node], self._outside)
        return self._outside[node]

    def _write_run(self, run: Run, handle: fx.Node) -> None:
        inputs = list(dict.fromkeys(n for node in run.nodes for n in sources_of(node, self._runs.loose)))
        members = set(run.nodes)
        inputs = [node for node in inputs if node not in members]
        staged = [node for node in inputs if node not in self._inside and not self._stays(node)]
        results = [node for node in run.nodes if self._used_elsewhere(node, members)]
        leaving = [node for node in results if self._outlives(node)]
        copied = [meta.size_bytes(node) or 0 for node in (*staged, *leaving)]
        operations = sum(not is_getitem(node) for node in run.nodes)
        weight = Weight(operations, len(staged), len(leaving), sum(copied))
        at = meta.placement(run.nodes[0])
        where = ("", "") if at is None else (at.region, at.phase)
        captured = weight.gain_s > 0
        self.reports.append(RunReport(*where, operations, sum(copied), "" if captured else NOT_WORTH))
        if not captured:
            for node in run.nodes:
                self._find(node)
            return
        number = len(self.segments)
        if staged:
            self._stage(handle, number, staged)
        kept = [node for node in results if node not in leaving or self._used_in_runs(node)]
        positions = {node: position for position, node in enumerate(results)}
        self.segments.append(
            Segment(
                self._function(run, inputs, results),
                tuple(positions[node] for node in kept),
                tuple(positions[node] for node in leaving),
            )
        )
        found = self._call("run", handle, number, tuple(self._given(node) for node in inputs), run)
        for index, node in enumerate((*kept, *leaving)):
            item = self._item(found, index, node)
            if index < len(kept):
                self._inside[node] = item
            self._outside[node] = item  # of one that is kept and leaves, the copy

    def _stays(self, node: fx.Node) -> bool:
        """Whether a value is at the same address in every call, as far as ``begin`` finds no other."""
        port = self._ports.get(node)
        return node.op == "get_attr" or (port is not None and port.role in _STAYING)

    def _given(self, node: fx.Node) -> fx.Node:
        if node in self._inside:
            return self._inside[node]
        found = self._inside[node] = self._find(node)
        if node in self._ports:
            self._staying.append(found)
        return found

    def _stage(self, handle: fx.Node, number: int, staged: Sequence[fx.Node]) -> None:
        found = self._call("stage", handle, number, tuple(self._find(node) for node in staged), None)
        for index, node in enumerate(staged):
            self._inside[node] = self._item(found, index, node)

    def _call(self, method: str, handle: fx.Node, number: int, values: tuple[fx.Node, ...], run: Run | None) -> fx.Node:
        node = self._graph.call_method(method, (handle, number, values))
        meta.mark_computation(node)
        if run is not None and (at := meta.placement(run.nodes[0])) is not None:
            meta.set_placement(node, at)
        return node

    def _item(self, found: fx.Node, index: int, node: fx.Node) -> fx.Node:
        item = self._graph.call_function(operator.getitem, (found, index))
        meta.set_value(item, meta.value(node))
        if (at := meta.placement(node)) is not None:
            meta.set_placement(item, dataclasses.replace(at, kind="compute"))  # a copy of what arrived is no wait
        return item

    def _function(self, run: Run, inputs: Sequence[fx.Node], results: Sequence[fx.Node]) -> Any:
        """What the run computes, from its inputs; views and numbers are made again in it."""
        inner, made = fx.Graph(), dict[fx.Node, fx.Node]()
        for node in inputs:
            made[node] = inner.placeholder(node.name)

        def write(node: fx.Node) -> None:
            for source in node.all_input_nodes:
                if source not in made:
                    write(source)
            if node not in made:
                copy_nodes(inner, [node], made)

        for node in run.nodes:
            write(node)
        inner.output(tuple(made[node] for node in results))
        return fx.GraphModule({}, inner).forward

    def _used_elsewhere(self, node: fx.Node, members: set[fx.Node]) -> bool:
        return any(user not in members for user in self._users(node))

    def _used_in_runs(self, node: fx.Node) -> bool:
        return any(user in self._members for user in self._users(node))

    def _users(self, node: fx.Node) -> set[fx.Node]:
        """Who takes a value, seen through what is loose."""
        found: set[fx.Node] = set()
        pending = list(node.users)
        while pending:
            user = pending.pop()
            if user in self._runs.loose:
                pending += user.users
            else:
                found.add(user)
        return found

    def _outlives(self, node: fx.Node) -> bool:
        """Whether a result of the graph may be this value, or share its memory."""
        seen: set[fx.Node] = set()
        pending = [node]
        while pending:
            value = pending.pop()
            if value in self._lasting:
                return True
            for user in value.users:
                if user in seen or user.op == "output" or meta.marked_computation(user):
                    continue  # what is compiled makes its results anew
                if is_view(user) or is_getitem(user) or value in sharing_arguments(user):
                    seen.add(user)
                    pending.append(user)
        return False
