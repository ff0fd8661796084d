"""Host reads and the small messages that they wait for: exchanges of counts.

A dropless layer first tells every rank how many rows it will get; the host reads that, and only then can the rows be
launched. Such an exchange is worth launching the moment it can be, since everything behind it waits. It carries
integers: a combine is none, although the next layer's router, which the host reads, needs its result.
"""

from collections.abc import Sequence

from annopipe.ordering.problem import OverlapProblem

__all__ = ["count_exchanges", "counts_early"]


def count_exchanges(problem: OverlapProblem) -> set[int]:
    """Launches of integers whose result a host read of their lane needs before the lane's next launch."""
    last: dict[str, int] = {}  # the latest launch of each lane
    behind: dict[str, set[int]] = {}  # what depends on it
    found: set[int] = set()
    for node in problem.nodes:
        if node.kind == "launch":
            last[node.lane], behind[node.lane] = node.index, {node.index}
        elif node.lane in last and not behind[node.lane].isdisjoint(problem.dependencies[node.index]):
            behind[node.lane].add(node.index)
            if node.kind == "host" and not problem.nodes[last[node.lane]].floating:
                found.add(last[node.lane])
    return found


def counts_early(problem: OverlapProblem, order: Sequence[int]) -> list[int]:
    """The order with every exchange of counts moved to just behind the last node that must come before it.

    Exchanges keep their sequence, and none moves ahead of another launch.
    """
    counts = count_exchanges(problem)
    place = {index: position for position, index in enumerate(order)}
    earliest = -1.0
    keys: dict[int, tuple[float, int]] = {}
    for index in order:
        key = float(place[index])
        if index in counts:
            inputs = max((place[source] for source in problem.dependencies[index]), default=-1)
            key = min(key, max(inputs + 0.5, earliest))
        if problem.nodes[index].kind == "launch":
            earliest = key
        keys[index] = key, place[index]
    return sorted(order, key=keys.__getitem__)
