"""Host reads that do not hold up the host before it needs the numbers.

needs       a graph in the order in which it runs, on a device; nodes with regions.
does        cuts every read of the host in two: a copy to pinned memory, on a stream of its own, starts as soon as the
            value is there in the plan's order; the host waits for it just before the first node that uses it.
guarantees  nothing uses a copy before it has ended; a value is held until then; the order of all other nodes, and so
            that of collectives, stays. Values that something writes to are read where they were.

    counts  mm  launch  read(counts)  n        ->        counts  start(counts)  mm  launch  finish  n

Several numbers of one small tensor, as ``tolist()`` reads them, are one copy. On a processor there is nothing to do.
"""

import dataclasses
from typing import Any, Protocol

import torch
from torch import fx

from annopipe.graphs import meta
from annopipe.graphs.dependencies import in_written_storage, predecessors
from annopipe.graphs.ops import traits, view_chain
from annopipe.graphs.stage_graph import StageGraph, body, input_nodes

__all__ = ["HostCopies", "PinnedCopies", "copies_to_host", "with_host_copies"]

_HANDLE = "annopipe_host_copies"
_COPY, _READ = "_to_copy.default", "_local_scalar_dense.default"
_WHOLE = 4096  # elements that are copied whole, when one number of them is read


class HostCopies(Protocol):
    """What copies to the host."""

    def start(self, value: torch.Tensor, dtype: torch.dtype) -> Any:
        """Start to copy a value, as another type perhaps."""

    def finish(self, started: Any) -> torch.Tensor:
        """Wait for it to end, and have the copy."""


class PinnedCopies:
    """Copies of a CUDA device's values in pinned memory; they run beside what is issued later."""

    def __init__(self) -> None:
        self._stream: torch.cuda.Stream | None = None

    def start(self, value: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.cuda.Event]:
        """See `HostCopies`."""
        if self._stream is None:
            self._stream = torch.cuda.Stream(value.device)
        copy = torch.empty_like(value, dtype=dtype, device="cpu", pin_memory=True)
        ended = torch.cuda.Event()
        self._stream.wait_stream(torch.cuda.current_stream(value.device))
        with torch.cuda.stream(self._stream):
            copy.copy_(value, non_blocking=True)
            ended.record(self._stream)
        return value, copy, ended  # the value stays until the copy has ended

    def finish(self, started: tuple[torch.Tensor, torch.Tensor, torch.cuda.Event]) -> torch.Tensor:
        """See `HostCopies`."""
        _, copy, ended = started
        ended.synchronize()
        return copy


def copies_to_host(node: fx.Node) -> bool:
    """Whether the host blocks until a copy from a device has arrived.

    >>> copies_to_host(fx.Graph().placeholder("x"))
    False
    """
    if _name(node) != _COPY or node.kwargs.get("non_blocking"):
        return False
    source, copy = (getattr(meta.value(n), "device", None) for n in (node.all_input_nodes[0], node))
    return source is not None and source.type not in ("cpu", "meta") and copy is not None and copy.type == "cpu"


@dataclasses.dataclass(frozen=True)
class _Read:
    """A value to copy, the last node that has to come before, and the nodes that read the value or parts of it."""

    value: fx.Node
    dtype: torch.dtype
    after: fx.Node
    readers: tuple[fx.Node, ...]


def with_host_copies(graph: StageGraph, copies: HostCopies | None = None, device: str = "cuda") -> StageGraph:
    """The graph with its host reads cut in two; the graph itself where there are none.

    Args:
        graph: in the order in which it runs.
        copies: what copies; None is to pinned memory.
        device: the type of the device whose values are read.
    """
    if all(port.device != device for port in graph.inputs) or not _reads(graph.graph, device):
        return graph
    copy = graph.copy()
    nodes = copy.graph
    first = next(iter(body(nodes)), nodes.output_node())
    with nodes.inserting_before(first):
        handle = nodes.get_attr(_HANDLE)
    for read in _reads(nodes, device):
        _cut(nodes, handle, read)
    attributes = {**graph.attributes, _HANDLE: PinnedCopies() if copies is None else copies}
    return StageGraph(
        nodes, graph.inputs, graph.outputs, attributes=attributes, guards=graph.guards, around=graph.around
    )


def _reads(graph: fx.Graph, device: str) -> list[_Read]:
    """The host reads, those of one value together."""
    nodes = [*input_nodes(graph), *body(graph)]
    written = in_written_storage(nodes)
    before = predecessors(nodes)
    found: dict[tuple[fx.Node, fx.Node], list[fx.Node]] = {}
    reads = []
    for place, node in enumerate(nodes):
        if _name(node) not in (_COPY, _READ) or node.kwargs.get("non_blocking"):
            continue
        value, own = node.all_input_nodes[0], meta.value(node)
        source = meta.value(value)
        is_copy = _name(node) == _COPY
        if not isinstance(source, torch.Tensor) or source.device.type != device or value in written:
            continue
        if is_copy and (not isinstance(own, torch.Tensor) or own.device.type != "cpu" or _lays_out(node)):
            continue
        root, _ = view_chain(value)
        if traits(root).launch:
            continue
        whole = value if is_copy or root in written or not _is_small(root) else root
        inside = _chain(value, whole)
        # Where it starts in the place of its views, it comes after what they come after.
        earlier = {n for own_place in [place, *(nodes.index(n) for n in inside)] for n in before[own_place]}
        after = nodes[max(n for n in earlier if nodes[n] not in inside)]
        if is_copy:
            reads.append(_Read(value, own.dtype, after, (node,)))
        else:
            found.setdefault((whole, after), []).append(node)
    return reads + [_Read(whole, meta.value(whole).dtype, after, tuple(own)) for (whole, after), own in found.items()]


def _chain(node: fx.Node, whole: fx.Node) -> list[fx.Node]:
    """The views from a node to what they are views of."""
    return [] if node is whole else [node, *_chain(node.all_input_nodes[0], whole)]


def _lays_out(node: fx.Node) -> bool:
    return node.kwargs.get("memory_format") not in (None, torch.preserve_format)


def _is_small(node: fx.Node) -> bool:
    """Whether a value lies in one piece and has few elements, as is known when it is traced."""
    fake = meta.value(node)
    if not isinstance(fake, torch.Tensor) or not all(isinstance(size, int) for size in (*fake.shape, *fake.stride())):
        return False
    return fake.numel() <= _WHOLE and fake.is_contiguous()


def _cut(graph: fx.Graph, handle: fx.Node, read: _Read) -> None:
    after = handle if read.after.op == "placeholder" else read.after
    with graph.inserting_after(after):
        started = graph.call_method("start", (handle, read.value, read.dtype))
    copied = _name(read.readers[0]) == _COPY
    position = {node: place for place, node in enumerate(graph.nodes)}
    uses = (copied and [*read.readers[0].users]) or read.readers  # a read for nothing stays where it was
    with graph.inserting_before(min(uses, key=position.__getitem__)):
        found = graph.call_method("finish", (handle, started))
        found.meta = dict(read.readers[0].meta) if copied else {}
    if copied:
        read.readers[0].replace_all_uses_with(found)
        graph.erase_node(read.readers[0])
        return
    for reader in read.readers:
        with graph.inserting_before(reader):
            reader.replace_input_with(reader.all_input_nodes[0], _part(graph, reader.all_input_nodes[0], read, found))


def _part(graph: fx.Graph, node: fx.Node, read: _Read, found: fx.Node) -> fx.Node:
    """The copy of a view of what was copied."""
    if node is read.value:
        return found
    source = node.all_input_nodes[0]
    return graph.node_copy(node, lambda n: _part(graph, n, read, found) if n is source else n)


def _name(node: fx.Node) -> str:
    return getattr(node.target, "__name__", "") if node.op == "call_function" else ""
