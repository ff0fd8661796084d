"""Adjust an order without changing what its author meant."""

from collections.abc import Sequence

from annopipe.ordering.problem import OverlapProblem

__all__ = ["waits_late"]


def waits_late(problem: OverlapProblem, order: Sequence[int]) -> list[int]:
    """The order with every wait moved to just before the first node that must come after it."""
    place = {index: position for position, index in enumerate(order)}
    end = len(place)

    def key(index: int) -> tuple[float, int]:
        if problem.nodes[index].kind != "wait":
            return place[index], place[index]
        return min((place[user] for user in problem.successors[index]), default=end) - 0.5, place[index]

    return sorted(order, key=key)
