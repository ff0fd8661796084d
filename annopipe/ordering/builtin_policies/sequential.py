"""``sequential``: program order, one lane after the other, every wait where it was written."""

from annopipe.ordering.problem import OverlapProblem

__all__ = ["sequential"]


def sequential(problem: OverlapProblem) -> list[int]:
    """Nothing overlaps but what the model's own code overlaps; the order that others are compared with."""
    return list(range(len(problem.nodes)))
