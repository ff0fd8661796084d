"""``list``: list scheduling on two resources, the issuing thread and the link.

Greedy (``annopipe.ordering.greedy``), with the longest path still behind a node as its priority, transfers included.
So launches go early, and weight gradients, which nothing depends on, fill the gaps.

One rule for "longest" does not fit all graphs, so a few are tried in simulation and the shortest order is kept, at
once if it is within 0.2% of the lower bound; program order and ``alternate`` are among the candidates, so otherwise
list scheduling is never slower than these.
Source: list scheduling, Graham (1969); critical-path priorities, Hu (1961).
"""

import dataclasses
import math

from annopipe.ordering.adjustments import waits_late
from annopipe.ordering.bounds import CLOSE, lower_bound
from annopipe.ordering.builtin_policies.alternate import alternate
from annopipe.ordering.builtin_policies.sequential import sequential
from annopipe.ordering.greedy import greedy_order, path_lengths
from annopipe.ordering.host_reads import counts_early, counts_together_if_no_slower
from annopipe.ordering.problem import OverlapProblem

__all__ = ["list_"]


@dataclasses.dataclass(frozen=True, slots=True)
class _Rule:
    """How a priority is made: weight of transfers on the path, and how much a lane's launches are preferred."""

    transfer_weight: float
    lane_offset: float = 0.0  # share of the longest path by which each later lane is put back


_RULES = (
    _Rule(1.0),
    _Rule(2.0),
    _Rule(0.5),
    _Rule(1.0, 0.15),
    _Rule(1.0, -0.15),
    _Rule(1.0, 1.0),
    _Rule(1.0, -1.0),
)
_NODES_TRIED = 40_000  # so that planning a graph of 10,000 nodes stays well below a second


def list_(problem: OverlapProblem) -> list[int]:
    """The shortest, in simulation, of the list schedules under a few priority rules; needs costs."""
    enough = lower_bound(problem) * CLOSE
    tries = max(1, min(len(_RULES), _NODES_TRIED // max(1, len(problem.nodes))))
    best, shortest = list(range(len(problem.nodes))), math.inf
    for number in range(tries + 2):
        if number < tries:
            order = greedy_order(problem, _priorities(problem, _RULES[number]))
        else:
            order = list(alternate(problem) if number == tries else sequential(problem))
        order = waits_late(problem, counts_early(problem, waits_late(problem, order)))
        makespan = problem.makespan(order)
        if makespan < shortest:
            best, shortest = order, makespan
        if shortest <= enough:
            break
    return counts_together_if_no_slower(problem, best)


def _priorities(problem: OverlapProblem, rule: _Rule) -> list[float]:
    """Seconds behind each node, as the rule weighs them."""
    longest = path_lengths(problem, rule.transfer_weight)
    if rule.lane_offset:
        scale = rule.lane_offset * max(longest, default=0.0)
        rank = {lane: number for number, lane in enumerate(problem.lanes)}
        longest = [value - scale * rank[problem.nodes[i].lane] for i, value in enumerate(longest)]
    return longest
