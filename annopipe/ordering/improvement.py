"""Local search: make a few good orders better by changing priorities of a greedy schedule, in simulation.

Each order becomes one priority per piece of the small problem (earlier is higher). Again and again one or a few pieces
get the priority of another piece, the greedy schedule is simulated, and what is no worse is kept. The random numbers
come from a generator of the search's own, so that every rank finds the same order.
"""

import random
from collections.abc import Sequence

from annopipe.ordering.adjustments import waits_late
from annopipe.ordering.bounds import CLOSE, lower_bound
from annopipe.ordering.coarsening import coarsened
from annopipe.ordering.greedy import greedy_order
from annopipe.ordering.problem import OverlapProblem

__all__ = ["improved"]

_WORK = 300_000  # pieces scheduled in all: about half a second
_MOST_TRIES = 3_000  # small problems have long settled by then
_FEWEST_TRIES = 100  # with fewer, changes among so many pieces find nothing
_KEPT = 2  # searched from in turn: one alone may be stuck where another is not


def improved(problem: OverlapProblem, orders: Sequence[Sequence[int]]) -> list[int]:
    """The shortest order found, in simulation, from ``orders``; it may be longer than the shortest of these.

    The first of ``orders``, the shortest, where the problem has so many pieces that searching is no use.
    """
    small = coarsened(problem)
    pieces = len(small.members)
    tries = min(_MOST_TRIES, _WORK // max(1, pieces))
    if tries < _FEWEST_TRIES:
        return list(orders[0])
    bound = lower_bound(problem) * CLOSE
    pool = []
    for order in orders:
        priority = _priorities(small.members, order)
        pool.append((small.problem.makespan(greedy_order(small.problem, priority)), priority))
    pool = sorted(pool, key=lambda found: found[0])[:_KEPT]
    best, best_priority = pool[0]
    generator = random.Random(0)
    for _ in range(tries):
        if best <= bound:
            break
        at = generator.randrange(len(pool))
        shortest, priority = pool[at]
        changed = list(priority)
        for _ in range(generator.choice((1, 1, 2, 3))):
            changed[generator.randrange(pieces)] = changed[generator.randrange(pieces)] + generator.choice((-0.5, 0.5))
        makespan = small.problem.makespan(greedy_order(small.problem, changed))
        if makespan <= shortest:
            pool[at] = makespan, changed
            if makespan < best:
                best, best_priority = makespan, changed
    return waits_late(problem, small.written_out(greedy_order(small.problem, best_priority)))


def _priorities(members: Sequence[Sequence[int]], order: Sequence[int]) -> list[float]:
    place = {index: position for position, index in enumerate(order)}
    return [-float(min(place[index] for index in piece)) for piece in members]
