"""How long a collective takes on given links: latency, and bytes over bandwidth, by the usual algorithm of each.

For n ranks, L of them on a node, and S bytes (a rank's whole message; after an all-gather and before a reduce-scatter,
all ranks' parts together):

    all_to_all       every rank sends S/n to each peer at once: S (L-1)/n inside the node and S (n-L)/n to other nodes.
                     Both links work at the same time, the slower one counts. One hop.
    all_gather       ring: S (n-1)/n in n-1 hops.
    reduce_scatter   the same.
    all_reduce       ring, 2 S (n-1)/n in 2 (n-1) hops, or tree, 2 S in 2 log2 hops: the faster one.
    broadcast        tree, pipelined: S in log2 hops.

A ring crosses each node boundary once for every rank of a node, each through its own network port, so its bandwidth
is that of the link inside a node or L network ports, whichever is less (as NCCL's bus bandwidth). What a rank sends
to itself is a copy in memory. A group fills as few nodes as it can, unless it is said to lie on more.
"""

import dataclasses
import math
from typing import Literal

from annopipe.costs.hardware import Hardware
from annopipe.errors import CostError

__all__ = ["Collective", "NodeLimit", "Transfer", "transfer"]

Collective = Literal["all_to_all", "all_gather", "reduce_scatter", "all_reduce", "broadcast"]


@dataclasses.dataclass(frozen=True, slots=True)
class NodeLimit:
    """Node-limited routing (DeepSeek-V3 report, arXiv 2412.19437, section 3.2.2).

    The ``copies`` rows of a token go to at most ``nodes`` nodes. One row for each of these crosses the network, and is
    copied inside the node to the ranks that want it.

    >>> NodeLimit(copies=8, nodes=4).crossing
    0.5
    """

    copies: int
    nodes: int

    def __post_init__(self) -> None:
        if not (isinstance(self.copies, int) and isinstance(self.nodes, int) and 1 <= self.nodes <= self.copies):
            raise CostError(
                f"NodeLimit(copies={self.copies!r}, nodes={self.nodes!r}): give whole numbers, with "
                "1 <= nodes <= copies: each copy goes to one node"
            )

    @property
    def crossing(self) -> float:
        """Rows that the network carries, as a share of the rows that arrive, if no rank were on the sender's node."""
        return self.nodes / self.copies


@dataclasses.dataclass(frozen=True, slots=True)
class Transfer:
    """Time of a transfer that has the links to itself: all of it, and what remains however small the message is."""

    seconds: float
    latency: float


def transfer(
    kind: Collective,
    size_bytes: float,
    ranks: int,
    hardware: Hardware,
    *,
    nodes: int | None = None,
    limit: NodeLimit | None = None,
) -> Transfer:
    """The time of one collective; the module's docstring has the formulas.

    Args:
        size_bytes: a rank's whole message, see there.
        nodes: over how many nodes the group is spread; as few as possible when left out.
        limit: of all-to-alls, how rows for one node are merged.

    >>> from annopipe.costs.machines import machine
    >>> f"{transfer('all_gather', 1e9, 8, machine('h100')).seconds * 1e3:.2f} ms"  # 7/8 GB at 360 GB/s
    '2.46 ms'
    """
    nodes = -(-ranks // hardware.ranks_per_node) if nodes is None else nodes
    if not 1 <= nodes <= ranks:
        raise CostError(f"a group of {ranks} ranks cannot lie on {nodes} nodes: give at least 1 and at most {ranks}")
    local = -(-ranks // nodes)
    hop = hardware.inside.hop_s if nodes == 1 else hardware.outside.hop_s
    inside, outside = hardware.inside.collective, hardware.outside.collective
    ring = inside if nodes == 1 else min(inside, local * outside)
    own = 2 * size_bytes / ranks / hardware.memory_attained  # to itself: read and written
    if ranks == 1:
        moving, hops = own, 0
    elif kind == "all_to_all":
        within, across = _all_to_all_bytes(size_bytes, ranks, local, nodes, limit)
        moving, hops = max(own, within / inside, across / outside), 1
    elif kind in ("all_gather", "reduce_scatter"):
        moving, hops = max(own, size_bytes * (ranks - 1) / ranks / ring), ranks - 1
    elif kind == "broadcast":
        moving, hops = size_bytes / ring, _levels(ranks)
    else:
        by_ring = (2 * size_bytes * (ranks - 1) / ranks / ring, 2 * (ranks - 1))
        by_tree = (2 * size_bytes / ring, 2 * _levels(ranks))
        moving, hops = min(by_ring, by_tree, key=lambda option: option[0] + option[1] * hop)
    latency = hardware.collective_start_s + hops * hop
    return Transfer(latency + moving, latency)


def _all_to_all_bytes(
    size_bytes: float, ranks: int, local: int, nodes: int, limit: NodeLimit | None
) -> tuple[float, float]:
    """Bytes that a rank sends inside its node and over the network."""
    within, across = size_bytes * (local - 1) / ranks, size_bytes * (ranks - local) / ranks
    if limit is None or nodes == 1:
        return within, across
    # Every row is forwarded inside the node where it arrives, unless it is for the rank that got it from the network.
    return size_bytes * (local - 1) / local, min(across, size_bytes * limit.crossing * (nodes - 1) / nodes)


def _levels(ranks: int) -> int:
    return math.ceil(math.log2(ranks))
