"""Roofline costs: what every node of a graph takes on hardware that need not be there, from sizes alone.

    computation     max(operations / attained peak, bytes / attained bandwidth of memory) + the launch of a kernel;
                    views, symbolic numbers and waits take nothing
    host reads      the same, and the time until the host has the value
    launches        latency + bytes / bandwidth by the usual algorithm of each collective (collectives.py)

Operations come from PyTorch's counter (flops.py), bytes from the fake values of the trace (traffic.py), sizes that
depend on data from balanced routing (sizes.py); graphs traced on "meta" or fake tensors work, no value is ever needed.
The same arguments give the same costs on every rank.

What it is not: a small product attains less of the peak than a large one; caches, the order of kernels and other
work on the device do not count (``ap.costs.measure_interference`` measures what communication does to computation).
Attention costs what the graph says: traced on "meta" PyTorch unrolls it, traced on fake CPU tensors it is one kernel.
"""

import dataclasses
import math
from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import fx

from annopipe.costs.collectives import Collective, NodeLimit, Transfer, transfer
from annopipe.costs.flops import Flops, flops
from annopipe.costs.hardware import Hardware
from annopipe.costs.local_machine import local_hardware, measured_cpu
from annopipe.costs.machines import machine
from annopipe.costs.node_costs import NodeCosts
from annopipe.costs.sizes import Sizes
from annopipe.costs.traffic import Traffic, traffic
from annopipe.costs.transfers import Groups, message
from annopipe.errors import CostError, GraphError
from annopipe.graphs import meta
from annopipe.graphs.meta import Placement
from annopipe.graphs.regions import place
from annopipe.graphs.stage_graph import StageGraph, body
from annopipe.simulation import Network

__all__ = ["roofline"]

_DIRECTIONS = ("forward", "backward")
WireBytes = Mapping[str, float | Mapping[str, float]]


def roofline(
    graph: StageGraph,
    hardware: str | Hardware | None = None,
    *,
    ranks: int | Mapping[str, int] | None = None,
    nodes: int | Mapping[str, int] | None = None,
    sizes: Mapping[str, int] | None = None,
    matmul_dtype: torch.dtype | None = None,
    wire_bytes: WireBytes | None = None,
    node_limit: NodeLimit | None = None,
    collectives: Mapping[str, Collective] | None = None,
    fused: bool = False,
    skew: float = 1.0,
    network: Network | None = None,
    group: dist.ProcessGroup | None = None,
) -> NodeCosts:
    """What every node of ``graph`` takes on a machine, by its datasheet.

    Args:
        graph: any stage graph, combined or not.
        hardware: "a100", "h100", "h200", "h800", "b200"; "cpu", measured here once; or a ``Hardware``. None: the local
            device.
        ranks: sizes of process groups that neither the graph nor torch.distributed tells: a number for all, or
            numbers by group.
        nodes: over how many nodes a group is spread (as few as possible): a number, or numbers by group.
        sizes: sizes that depend on data, by symbol ("u1", or "F.u1" in lane F) or by the name of the port that carries
            it. Left out: routing is balanced, an exchange receives what it sends, evenly from all peers and experts.
        matmul_dtype: the type in which linear layers and experts multiply where the graph multiplies 16-bit values:
            ``torch.float8_e4m3fn``. Wider products and attention stay as they are; quantisation is not charged.
        wire_bytes: bytes that an element of a floating-point message takes on the wire, by region and, if need be,
            direction: {"dispatch": {"forward": 1.03, "backward": 2}, "combine": 2}. The others take what was traced.
        node_limit: how all-to-alls of rows merge what goes to one node.
        collectives: what launches that PyTorch does not have are like, by operator: {"lib::dispatch": "all_to_all"}.
        fused: whether elementwise operations run as a compiler fuses them.
        skew: how many times its even share of the rows an exchange brings to this rank, the busiest one of its group,
            for which the others wait; sizes that are given stay.
        network: how transfers share the link, and how much computation slows down while one moves; what the
            hardware says of it when left out.
        group: with a measured machine ("cpu", or None without a GPU): ranks that all get the first one's numbers.

    Raises:
        CostError: unknown hardware, no peak for a data type, a group or size that nobody tells, a malformed option.
        GraphError: ``graph`` is no stage graph.

    >>> import annopipe as ap
    >>> graphs = ap.trace(torch.nn.Linear(1024, 1024, bias=False), (torch.ones(512, 1024),))
    >>> costs = ap.costs.roofline(graphs.forward, "h100")  # 2 * 512 * 1024 * 1024 operations at 0.7 * 66.9 TFLOP/s
    >>> f"{costs.seconds['mm'] * 1e6:.1f} us"
    '25.9 us'
    """
    if not isinstance(graph, StageGraph):
        raise GraphError(
            f"roofline takes a stage graph, got {type(graph).__name__}: pass graphs.forward or graphs.backward"
        )
    if matmul_dtype is not None and not isinstance(matmul_dtype, torch.dtype):
        raise CostError(f"matmul_dtype is {matmul_dtype!r}: give a type of torch, such as torch.float8_e4m3fn")
    if node_limit is not None and not isinstance(node_limit, NodeLimit):
        raise CostError(f"node_limit is {node_limit!r}: give ap.costs.NodeLimit(copies, nodes)")
    for name, table in (("sizes", sizes), ("wire_bytes", wire_bytes), ("collectives", collectives)):
        if table is not None and not isinstance(table, Mapping):
            raise CostError(f"{name} is {table!r}: give a mapping from names")
    device = _machine(hardware, group)
    rows = body(graph.graph)
    place(graph)
    model = _Model(
        device,
        Groups(ranks, nodes),
        Sizes(graph, sizes, skew),
        matmul_dtype,
        _by_direction(wire_bytes or {}),
        node_limit,
        collectives or {},
    )
    moved = traffic(graph, model.sizes, fused=fused)
    seconds, latency, issue = {}, {}, {}
    for node in rows:
        at = meta.placed(node)
        if at.kind == "launch":
            on_link = model.transfer(node, at)
            seconds[at.key], latency[at.key] = on_link.seconds, on_link.latency
            issue[at.key] = device.collective_issue_s
        else:
            seconds[at.key] = model.computation(node, at, moved[node])
    shared = network or Network(in_flight=device.in_flight, interference=device.interference)
    return NodeCosts(seconds, latency, issue, shared, f"roofline of {device.name}")


@dataclasses.dataclass(frozen=True)
class _Model:
    """The machine and the assumptions that costs are computed with."""

    hardware: Hardware
    groups: Groups
    sizes: Sizes
    matmul_dtype: torch.dtype | None
    wire_bytes: Mapping[tuple[str, str], float]  # by region and direction
    node_limit: NodeLimit | None
    collectives: Mapping[str, Collective]

    def computation(self, node: fx.Node, at: Placement, moved: Traffic) -> float:
        """Seconds of a node that runs on the device."""
        host = self.hardware.host_read_s if at.kind == "host" else 0.0
        if not moved.is_kernel and not moved.read_bytes and not moved.written_bytes:
            return host
        launch = self.hardware.kernel_launch_s if moved.is_kernel else 0.0
        counted, read_bytes, computing = flops(node, self.sizes), float(moved.read_bytes), 0.0
        if counted is not None:
            dtype = self._multiplied(counted)
            read_bytes *= dtype.itemsize / counted.dtype.itemsize
            computing = counted.count / self._peak(node, dtype, attention=counted.is_attention)
        return host + launch + max(computing, (read_bytes + moved.written_bytes) / self.hardware.memory_attained)

    def transfer(self, node: fx.Node, at: Placement) -> Transfer:
        """Time of a launch's transfer on the link."""
        sent = message(node, self.groups, self.sizes, self.collectives)
        element_bytes: float = sent.element_bytes
        if sent.is_floating:
            element_bytes = self._wire_bytes(at, element_bytes)
        try:
            return transfer(
                sent.kind,
                sent.elements * element_bytes,
                sent.ranks,
                self.hardware,
                nodes=self.groups.spread(sent.group),
                limit=self.node_limit if sent.is_floating else None,
            )
        except CostError as error:
            raise CostError(f"{node.name}: {error}") from error

    def _multiplied(self, counted: Flops) -> torch.dtype:
        narrowed = self.matmul_dtype is not None and counted.is_linear and counted.dtype.itemsize == 2
        return self.matmul_dtype if narrowed and self.matmul_dtype is not None else counted.dtype

    def _peak(self, node: fx.Node, dtype: torch.dtype, *, attention: bool) -> float:
        try:
            return self.hardware.peak(str(dtype).removeprefix("torch."), attention=attention)
        except CostError as error:
            raise CostError(f"{node.name}: {error}") from error

    def _wire_bytes(self, at: Placement, traced: float) -> float:
        direction = "forward" if at.phase in ("forward", "recompute") else "backward"
        fitting = [key for key in self.wire_bytes if key[1] == direction and f"/{at.region}".endswith(f"/{key[0]}")]
        return self.wire_bytes[max(fitting, key=lambda key: len(key[0]))] if fitting else traced


def _machine(hardware: str | Hardware | None, group: dist.ProcessGroup | None) -> Hardware:
    if isinstance(hardware, Hardware):
        return hardware
    if hardware is None or (hardware == "cpu" and group is not None):
        return local_hardware(group, cpu=hardware == "cpu")
    return measured_cpu() if hardware == "cpu" else machine(hardware)


def _by_direction(wire_bytes: WireBytes) -> dict[tuple[str, str], float]:
    table = {}
    for region, given in wire_bytes.items():
        each = given if isinstance(given, Mapping) else dict.fromkeys(_DIRECTIONS, given)
        for direction, size in each.items():
            number = isinstance(size, (int, float)) and not isinstance(size, bool) and 0 < size < math.inf
            if direction not in _DIRECTIONS or not number:
                raise CostError(
                    f"wire_bytes[{region!r}] is {given!r}: give bytes per element, alike or by direction, such as "
                    '{"dispatch": {"forward": 1, "backward": 2}}'
                )
            table[region, direction] = float(size)
    return table
