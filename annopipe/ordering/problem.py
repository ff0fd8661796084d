"""OverlapProblem: what a policy sees of a combined graph, as plain data.

A policy is a function from a problem to an order. It sees nodes with their region, lane, phase and cost, and what
must come before what; it does not see tensors, and whatever it returns is proved legal before it is used.
"""

import dataclasses
import functools
import heapq
import itertools
from collections.abc import Iterable, Mapping, Sequence

from annopipe.errors import OrderError
from annopipe.simulation import Network, Task, makespan

__all__ = ["OverlapNode", "OverlapProblem", "ReasonedOrder", "Value"]


@dataclasses.dataclass(frozen=True, slots=True)
class OverlapNode:
    """One node of an overlap problem.

    index: its position in program order.  name: its key, "F.mm_3".  kind: compute, launch, wait or host.
    cost: seconds; computation on the issuing thread, a launch's transfer, 0 for a wait.
    queue: launches: the process group.  launch: waits: index of the launch, else -1.
    latency, issue: launches: part of the cost that does not stretch on a shared link; time to start the transfer.
    operation: launches: the collective, with what must be the same on all ranks (data type, reduction).
    floating: launches: whether it carries floating-point values, so that it is no exchange of counts.
    stream: the CUDA stream on which it computes, "" for the one that the graph is called on.
    graph: the lane of the graph that it is of, "F" of lane "F0", "" of a graph alone; None: its lane is its graph's.
    """

    index: int
    name: str
    region: str
    kind: str
    lane: str
    phase: str
    cost: float = 0.0
    queue: str = ""
    launch: int = -1
    latency: float = 0.0
    issue: float = 0.0
    operation: str = ""
    floating: bool = False
    graph: str | None = None
    stream: str = ""

    @property
    def own_graph(self) -> str:
        """The lane of its graph, of which its own may be a nano-batch."""
        return self.lane if self.graph is None else self.graph

    @property
    def thread_time(self) -> float:
        """Seconds that the node occupies the issuing thread, stalls left out."""
        return self.issue if self.kind == "launch" else self.cost


@dataclasses.dataclass(frozen=True, slots=True)
class Value:
    """Memory that is live from the node that makes it to the last that uses it.

    size_bytes: the whole storage, which views share.  made_by: a node's index, -1 for what the graph is called with.
    used_by: nodes' indices; a wait uses what its launch sends.  kept: it outlives the graph, as its outputs do.
    """

    size_bytes: int
    made_by: int
    used_by: tuple[int, ...]
    kept: bool = False


@dataclasses.dataclass(frozen=True)
class OverlapProblem:
    """Nodes in program order, what must come before each (indices), and the network.

    ``values`` are only there for a policy that keeps a memory limit.

    >>> problem = OverlapProblem((OverlapNode(0, "a", "", "compute", "F", ""),), ((),))
    >>> problem.makespan([0])
    0.0
    """

    nodes: tuple[OverlapNode, ...]
    dependencies: tuple[tuple[int, ...], ...]
    network: Network = dataclasses.field(default_factory=Network)
    has_costs: bool = True
    values: tuple[Value, ...] = ()

    def __post_init__(self) -> None:
        """Refuse a problem that is not in program order."""
        if len(self.nodes) != len(self.dependencies):
            raise OrderError(
                f"{len(self.nodes)} nodes, but dependencies for {len(self.dependencies)}: give one per node"
            )
        for index, (node, earlier) in enumerate(zip(self.nodes, self.dependencies, strict=True)):
            if node.index != index or (earlier and not 0 <= min(earlier) <= max(earlier) < index):
                raise OrderError(
                    f"{node.name}, number {index}, has index {node.index} and depends on {earlier}: nodes come in "
                    "program order, and what they depend on comes before them"
                )

    @functools.cached_property
    def successors(self) -> tuple[tuple[int, ...], ...]:
        """For each node the indices of those that name it as a dependency."""
        after: list[list[int]] = [[] for _ in self.nodes]
        for index, earlier in enumerate(self.dependencies):
            for source in earlier:
                after[source].append(index)
        return tuple(tuple(a) for a in after)

    @functools.cached_property
    def count_exchanges(self) -> frozenset[int]:
        """Launches of integers whose result a host read of their lane needs before the lane's next launch."""
        last: dict[str, int] = {}  # the latest launch of each lane
        behind: dict[str, set[int]] = {}  # what depends on it
        found: set[int] = set()
        for node in self.nodes:
            if node.kind == "launch":
                last[node.lane], behind[node.lane] = node.index, {node.index}
            elif node.lane in last and not behind[node.lane].isdisjoint(self.dependencies[node.index]):
                behind[node.lane].add(node.index)
                if node.kind == "host" and not self.nodes[last[node.lane]].floating:
                    found.add(last[node.lane])
        return frozenset(found)

    @property
    def costs(self) -> tuple[float, ...]:
        """Seconds per node."""
        return tuple(node.cost for node in self.nodes)

    @property
    def lanes(self) -> tuple[str, ...]:
        """The lanes, in order of first appearance."""
        return tuple(dict.fromkeys(node.lane for node in self.nodes))

    @property
    def regions(self) -> tuple[str, ...]:
        """The regions, in order of first appearance."""
        return tuple(dict.fromkeys(node.region for node in self.nodes))

    def program(self, order: Sequence[int]) -> list[Task]:
        """The simulation's tasks for an order, with positions in that order."""
        place = {index: position for position, index in enumerate(order)}
        return [
            _task(
                self.nodes[index],
                launch=place[self.nodes[index].launch] if self.nodes[index].kind == "wait" else -1,
                after=tuple(sorted(place[source] for source in self.dependencies[index])),
            )
            for index in order
        ]

    def makespan(self, order: Sequence[int]) -> float:
        """Simulated seconds of an order; cheap, for policies that compare orders."""
        return makespan(self._tasks, self.network, order)

    def peak_bytes(self, order: Sequence[int]) -> int:
        """The most bytes of ``values`` that are live at a time; those of a node's result while it runs, too.

        >>> node = OverlapNode(0, "a", "r", "compute", "F", "")
        >>> OverlapProblem((node,), ((),), values=(Value(8, -1, (0,)), Value(4, 0, (), kept=True))).peak_bytes([0])
        12
        """
        place = {index: position for position, index in enumerate(order)}
        change = [0] * (len(order) + 1)  # before the node at each position
        for value in self.values:
            made = place[value.made_by] if value.made_by >= 0 else 0
            change[made] += value.size_bytes
            if not value.kept:
                change[max([made, *(place[user] for user in value.used_by)]) + 1] -= value.size_bytes
        return max(itertools.accumulate(change))

    @functools.cached_property
    def _tasks(self) -> tuple[Task, ...]:
        return tuple(_task(node, launch=node.launch, after=()) for node in self.nodes)

    def with_costs(
        self,
        seconds: Mapping[str, float],
        latency: Mapping[str, float],
        issue: Mapping[str, float],
        network: Network,
    ) -> "OverlapProblem":
        """The problem with costs by node name; every node but waits needs one."""
        nodes = []
        for n in self.nodes:
            cost = 0.0 if n.kind == "wait" else seconds[n.name]
            own = min(latency.get(n.name, 0.0), cost), issue.get(n.name, 0.0)
            described = (n.index, n.name, n.region, n.kind, n.lane, n.phase, cost, n.queue, n.launch)
            nodes.append(OverlapNode(*described, *own, n.operation, n.floating, n.graph, n.stream))
        return dataclasses.replace(self, nodes=tuple(nodes), network=network, has_costs=True)

    def topological(self, rank: Sequence[float], chain: Sequence[int] = ()) -> list[int]:
        """A legal order that follows ``rank`` (smaller first) wherever dependencies allow.

        Args:
            rank: one number per node.
            chain: nodes that must come in this sequence, too.

        Raises:
            OrderError: dependencies and chain make a cycle.
        """
        following = dict(itertools.pairwise(chain))
        missing = [len(set(earlier)) for earlier in self.dependencies]
        for index in following.values():
            missing[index] += 1
        ready = [(rank[i], i) for i, count in enumerate(missing) if count == 0]
        heapq.heapify(ready)
        order: list[int] = []
        while ready:
            _, index = heapq.heappop(ready)
            order.append(index)
            users = [*self.successors[index], *([following[index]] if index in following else [])]
            for user in users:
                missing[user] -= 1
                if missing[user] == 0:
                    heapq.heappush(ready, (rank[user], user))
        if len(order) != len(self.nodes):
            stuck = [self.nodes[i].name for i, count in enumerate(missing) if count > 0]
            raise OrderError(f"no order is legal: {', '.join(stuck[:5])} wait for each other")
        return order


class ReasonedOrder(list[int]):
    """An order that says why it is the one; a policy may return it, and the plan then has the reason.

    >>> ReasonedOrder([0, 1], "nothing to hide").reason
    'nothing to hide'
    """

    def __init__(self, order: Iterable[int], reason: str) -> None:
        super().__init__(order)
        self.reason = reason


def _task(node: OverlapNode, *, launch: int, after: tuple[int, ...]) -> Task:
    return Task(
        name=node.name,
        kind=node.kind,  # type: ignore[arg-type]
        duration=0.0 if node.kind == "wait" else node.cost,
        region=node.region,
        lane=node.lane,
        phase=node.phase,
        queue=node.queue,
        launch=launch,
        latency=node.latency,
        issue=node.issue,
        after=after,
    )
