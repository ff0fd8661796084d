"""``list``: list scheduling on two resources, the issuing thread and the link.

At every moment the thread takes, of the nodes whose dependencies are met, a launch if there is one, else the
computation with the longest path still behind it, transfers included. So launches go early; a wait is only issued
once its transfer is over or nothing else is left to run; and weight gradients, which nothing depends on, fill the
gaps.

One rule for "longest" does not fit all graphs, so a few are tried in simulation and the shortest order is kept, at
once if it is within 0.2% of the lower bound; program order and ``alternate`` are among the candidates, so otherwise
list scheduling is never slower than these.
Source: list scheduling, Graham (1969); critical-path priorities, Hu (1961).
"""

import dataclasses
import heapq
import math
from collections.abc import Sequence

from annopipe.ordering.adjustments import waits_late
from annopipe.ordering.bounds import lower_bound
from annopipe.ordering.builtin_policies.alternate import alternate
from annopipe.ordering.builtin_policies.sequential import sequential
from annopipe.ordering.problem import OverlapProblem
from annopipe.ordering.registry import policy

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
_CLOSE = 1.002  # of the lower bound: no other rule can gain what anybody would notice
_NODES_TRIED = 40_000  # so that planning a graph of 10,000 nodes stays well below a second


@policy
def list_(problem: OverlapProblem) -> list[int]:
    """The shortest, in simulation, of the list schedules under a few priority rules; needs costs."""
    enough = lower_bound(problem) * _CLOSE
    tries = max(1, min(len(_RULES), _NODES_TRIED // max(1, len(problem.nodes))))
    best, shortest = list(range(len(problem.nodes))), math.inf
    for number in range(tries + 2):
        if number < tries:
            order = _schedule(problem, _priorities(problem, _RULES[number]))
        else:
            order = list(alternate(problem) if number == tries else sequential(problem))
        order = waits_late(problem, order)
        makespan = problem.makespan(order)
        if makespan < shortest:
            best, shortest = order, makespan
        if shortest <= enough:
            break
    return best


def _priorities(problem: OverlapProblem, rule: _Rule) -> list[float]:
    """Seconds from the start of a node to the end of the longest chain behind it, as the rule weighs them."""
    longest = [0.0] * len(problem.nodes)
    for node in reversed(problem.nodes):
        behind = max((longest[user] for user in problem.successors[node.index]), default=0.0)
        own = node.issue + node.cost * rule.transfer_weight if node.kind == "launch" else node.cost
        longest[node.index] = behind + own
    if rule.lane_offset:
        scale = rule.lane_offset * max(longest, default=0.0)
        rank = {lane: number for number, lane in enumerate(problem.lanes)}
        longest = [value - scale * rank[problem.nodes[i].lane] for i, value in enumerate(longest)]
    return longest


def _schedule(problem: OverlapProblem, priority: Sequence[float]) -> list[int]:
    nodes = problem.nodes
    missing = [len(earlier) for earlier in problem.dependencies]
    launches: list[tuple[float, int]] = []
    ready: list[tuple[float, int]] = []
    waiting: list[tuple[float, int]] = []  # by the end of their transfer
    arrival: dict[int, float] = {}
    order: list[int] = []
    links: dict[str, float] = {}  # when each link is free again
    clock = 0.0

    def push(index: int) -> None:
        if nodes[index].kind == "wait":
            heapq.heappush(waiting, (arrival[nodes[index].launch], index))
        else:
            heapq.heappush(launches if nodes[index].kind == "launch" else ready, (-priority[index], index))

    def issue(index: int) -> None:
        order.append(index)
        for user in problem.successors[index]:
            missing[user] -= 1
            if missing[user] == 0:
                push(user)

    for index, count in enumerate(missing):
        if count == 0:
            push(index)
    while launches or ready or waiting:
        if waiting and (waiting[0][0] <= clock or not (launches or ready)):
            end, index = heapq.heappop(waiting)
            clock = max(clock, end)
        else:
            _, index = heapq.heappop(launches or ready)
            node = nodes[index]
            clock += node.thread_time
            if node.kind == "launch":
                link = "" if problem.network.shared_link else node.queue
                links[link] = arrival[index] = max(clock, links.get(link, 0.0)) + node.cost
        issue(index)
    return order
