"""Computation on several CUDA streams: who waits for whom, and a graph that does so.

needs       a graph's nodes in the order in which they are issued, the stream of each, and what must come before what.
does        finds the events that streams have to wait for, and puts the calls for it between the nodes.
guarantees  what depends on a node of another stream waits for it; the graph's start and end are ordered with the stream
            that it is called on; no memory is given away while another stream still uses it. The order of issue, and
            so that of collectives and of random numbers, is the plan's.

    a  (side) b  c      c needs b      ->      a  to side, wait for the start, b, record b  back, wait for b, c

A processor has one queue: there the order is all there is.
"""

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import fx

from annopipe.graphs import meta
from annopipe.graphs.stage_graph import StageGraph, body, input_nodes, output_nodes

__all__ = ["START", "CudaStreams", "StreamPlan", "Streams", "stream_plan", "with_stream_calls"]

START = -1  # the event at the beginning of a graph
_HANDLE = "annopipe_streams"


@dataclasses.dataclass(frozen=True)
class StreamPlan:
    """Which stream every node runs on, and what it waits for; nodes are positions in the order of issue.

    Attributes:
        names: the stream of each node; "" is the one that the graph is called on.
        waits: of each node, the nodes (or ``START``) on other streams whose events its stream waits for before it.
        joins: the nodes that the calling stream waits for at the end.
    """

    names: tuple[str, ...]
    waits: tuple[tuple[int, ...], ...]
    joins: tuple[int, ...]

    @cached_property
    def recorded(self) -> frozenset[int]:
        """The nodes behind which an event is recorded, for those who wait."""
        return frozenset([*self.joins, *(event for waits in self.waits for event in waits)])


def stream_plan(names: Sequence[str], before: Sequence[Sequence[int]]) -> StreamPlan:
    """The fewest waits that this order of issue allows.

    Args:
        names: the stream of each node, in the order of issue.
        before: of each node, those that must come first; all of them earlier in the order.

    >>> plan = stream_plan(["", "side", ""], [[], [0], [1]])
    >>> plan.waits, plan.joins
    (((), (0,), (1,)), ())
    """
    seen: dict[str, dict[str, int]] = {"": {"": START}}  # what each stream knows to be done, by stream
    after: list[dict[str, int]] = []  # what is known to be done once a node is
    last: dict[str, int] = {}
    waits = []

    def wait_for(name: str, needed: Sequence[int]) -> tuple[int, ...]:
        known = seen[name]
        chosen = []
        for event in sorted(needed, reverse=True):  # the latest may imply the others
            other = "" if event == START else names[event]
            if other != name and known.get(other, START - 1) < event:
                chosen.append(event)
                for stream, position in (after[event] if event != START else {"": START}).items():
                    known[stream] = max(known.get(stream, START - 1), position)
        return tuple(sorted(chosen))

    for position, (name, needed) in enumerate(zip(names, before, strict=True)):
        fresh = name not in seen
        seen.setdefault(name, {})
        waits.append(wait_for(name, [*needed, START] if fresh else needed))
        seen[name][name] = last[name] = position
        after.append(dict(seen[name]))
    return StreamPlan(tuple(names), tuple(waits), wait_for("", [place for name, place in last.items() if name]))


class Streams(Protocol):
    """What a graph with stream calls does with streams; names and events are those of its ``StreamPlan``."""

    def begin(self) -> None:
        """The graph starts, on the stream that is current."""

    def switch(self, name: str) -> None:
        """What follows runs on another stream."""

    def wait(self, event: int) -> None:
        """The current stream goes on when the event has happened."""

    def record(self, event: int) -> None:
        """The event happens when the current stream gets here."""

    def lend(self, value: torch.Tensor, name: str) -> None:
        """A stream uses memory that another one has allocated: it must not be given away before that is done."""

    def around(self) -> AbstractContextManager[None]:
        """What the graph runs in."""


class CudaStreams:
    """Streams of a CUDA device, made when they are first used."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._streams: dict[str, torch.cuda.Stream] = {}
        self._events: dict[int, torch.cuda.Event] = {}

    def begin(self) -> None:
        """See `Streams`."""
        self._streams[""] = torch.cuda.current_stream(self._device)
        self.record(START)

    def switch(self, name: str) -> None:
        """See `Streams`."""
        torch.cuda.set_stream(self._stream(name))

    def wait(self, event: int) -> None:
        """See `Streams`."""
        torch.cuda.current_stream(self._device).wait_event(self._events[event])

    def record(self, event: int) -> None:
        """See `Streams`."""
        if event not in self._events:
            self._events[event] = torch.cuda.Event()
        self._events[event].record(torch.cuda.current_stream(self._device))

    def lend(self, value: torch.Tensor, name: str) -> None:
        """See `Streams`."""
        value.record_stream(self._stream(name))

    @contextlib.contextmanager
    def around(self) -> Iterator[None]:
        """The current stream is the same afterwards, also when a node raises."""
        with torch.cuda.stream(torch.cuda.current_stream(self._device)):
            yield

    def _stream(self, name: str) -> torch.cuda.Stream:
        if name not in self._streams:
            self._streams[name] = torch.cuda.Stream(self._device)
        return self._streams[name]


def with_stream_calls(graph: StageGraph, plan: StreamPlan, streams: Streams) -> StageGraph:
    """A copy of a graph whose nodes run on the streams of a plan.

    Args:
        graph: its nodes in the plan's order of issue.
        plan: what ``stream_plan`` found for them.
        streams: what carries the calls out.
    """
    copy = graph.copy()
    nodes = body(copy.graph)
    made_on = {**dict.fromkeys(input_nodes(copy.graph), ""), **dict(zip(nodes, plan.names, strict=True))}
    with copy.graph.inserting_before(next(iter(copy.graph.nodes))):
        handle = copy.graph.get_attr(_HANDLE)
    _Calls(copy.graph, handle, plan, made_on).insert(nodes)
    attributes = {**copy.attributes, _HANDLE: streams}
    return StageGraph(
        copy.graph, copy.inputs, copy.outputs, attributes=attributes, guards=copy.guards, around=streams.around
    )


class _Calls:
    """Puts the calls of a plan between the nodes of a graph."""

    def __init__(self, graph: fx.Graph, handle: fx.Node, plan: StreamPlan, made_on: dict[fx.Node, str]) -> None:
        self._graph, self._handle, self._plan, self._made_on = graph, handle, plan, made_on
        self._lent: set[tuple[fx.Node, str]] = set()

    def insert(self, nodes: Sequence[fx.Node]) -> None:
        """All of them, around nodes in the order of issue."""
        plan, current, output = self._plan, "", self._graph.output_node()
        self._call(next(iter(nodes), output), "begin")
        for position, node in enumerate(nodes):
            name = plan.names[position]
            if name != current:
                self._call(node, "switch", name)
                current = name
            for event in plan.waits[position]:
                self._call(node, "wait", event)
            self._lend(node, node.all_input_nodes, name)
            if position in plan.recorded:
                self._call(node.next, "record", position)
        if current:
            self._call(output, "switch", "")
        for event in plan.joins:
            self._call(output, "wait", event)
        self._lend(output, [node for node in output_nodes(self._graph) if isinstance(node, fx.Node)], "")

    def _lend(self, before: fx.Node, values: Sequence[fx.Node], name: str) -> None:
        """Tensors that a stream uses and another one has made."""
        for value in values:
            made_on = self._made_on.get(value)
            if made_on is None or made_on == name or (value, name) in self._lent:
                continue
            if isinstance(meta.value(value), torch.Tensor):
                self._lent.add((value, name))
                self._call(before, "lend", value, name)

    def _call(self, before: fx.Node, method: str, *arguments: Any) -> None:
        with self._graph.inserting_before(before):
            self._graph.call_method(method, (self._handle, *arguments))
