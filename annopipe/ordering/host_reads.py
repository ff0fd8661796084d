"""Host reads and the small messages that they wait for: exchanges of counts.

A dropless layer first tells every rank how many rows it will get; the host reads that, and only then can the rows be
launched. Such an exchange is worth launching the moment it can be, since everything behind it waits. It carries
integers: a combine is none, although the next layer's router, which the host reads, needs its result.
"""

from collections.abc import Sequence

from annopipe.ordering.problem import OverlapProblem

__all__ = ["counts_early"]


def counts_early(problem: OverlapProblem, order: Sequence[int]) -> list[int]:
    """The order with every exchange of counts moved to just behind the last node that must come before it.

    Exchanges keep their sequence, and none moves ahead of another launch.
    """
    place = {index: position for position, index in enumerate(order)}
    earliest = -1.0
    keys: dict[int, tuple[float, int]] = {}
    for index in order:
        key = float(place[index])
        if index in problem.count_exchanges:
            inputs = max((place[source] for source in problem.dependencies[index]), default=-1)
            key = min(key, max(inputs + 0.5, earliest))
        if problem.nodes[index].kind == "launch":
            earliest = key
        keys[index] = key, place[index]
    return sorted(order, key=keys.__getitem__)
