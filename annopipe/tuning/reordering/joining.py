"""Put a W that runs right behind its I together with it: the B that it is, where nobody waits longer for that."""

from collections.abc import Sequence

from annopipe.tuning.reordering.problem import Orders, Problem
from annopipe.tuning.reordering.times import times

__all__ = ["joined"]

_ROUNDING = 1e-9


def joined(problem: Problem, orders: Orders, makespan: float) -> Orders:
    """Orders with B in place of I and W on all ranks where the step stays as short as it is.

    A B hands its gradient on when its weight gradients are done, too.

    >>> from annopipe.scheduling.action_costs import table
    >>> from annopipe.scheduling.library import schedule
    >>> problem = Problem.of(schedule("1f1b", ranks=2, microbatches=2), table(F=1.0, I=1.0, W=1.0))
    >>> [problem.schedule(joined(problem, problem.start, end)).programs.texts()[1] for end in (8.0, 9.0)]
    [['1F0', '1I0', '1W0', '1F1', '1I1', '1W1'], ['1F0', '1B0', '1F1', '1B1']]
    """
    found = list(orders)
    for rank, order in enumerate(orders):
        tried = [*found[:rank], _joined(order, problem.numbering.block), *found[rank + 1 :]]
        if len(tried[rank]) < len(order):
            after = times(problem, tried)
            if after is not None and after.makespan <= makespan * (1 + _ROUNDING):
                found = tried
    return found


def _joined(order: Sequence[int], block: int) -> list[int]:
    row: list[int] = []
    for number in order:
        if row and 3 * block <= number < 4 * block and row[-1] == number - block:
            row[-1] = number - 2 * block
        else:
            row.append(number)
    return row
