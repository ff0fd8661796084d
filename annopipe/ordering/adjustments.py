"""Adjust an order without changing what its author meant: waits as late, launches as early as dependencies allow."""

from collections.abc import Sequence

from annopipe.ordering.problem import OverlapProblem

__all__ = ["launches_early", "waits_late"]


def waits_late(problem: OverlapProblem, order: Sequence[int]) -> list[int]:
    """The order with every wait moved to just before the first node that must come after it."""
    place = {index: position for position, index in enumerate(order)}
    end = len(place)

    def key(index: int) -> tuple[float, int]:
        if problem.nodes[index].kind != "wait":
            return place[index], place[index]
        return min((place[user] for user in problem.successors[index]), default=end) - 0.5, place[index]

    return sorted(order, key=key)


def launches_early(problem: OverlapProblem, order: Sequence[int]) -> list[int]:
    """The order with every launch moved to just behind the last node that must come before it.

    Launches keep their sequence. For an order of streams, where a launch waits for its inputs and not for the
    computation issued before it.
    """
    place = {index: position for position, index in enumerate(order)}
    keys: dict[int, tuple[float, int]] = {}
    last_launch = -1.0
    for index in order:
        keys[index] = (float(place[index]), place[index])
        if problem.nodes[index].kind == "launch":
            inputs = (keys[source][0] for source in problem.dependencies[index])
            last_launch = max(last_launch, *inputs, -1.0) if problem.dependencies[index] else last_launch
            keys[index] = (last_launch + 0.25 if last_launch == int(last_launch) else last_launch, place[index])
            last_launch = keys[index][0]
    return sorted(order, key=keys.__getitem__)
