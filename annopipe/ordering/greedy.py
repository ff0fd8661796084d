"""Greedy schedules: at every moment the thread takes the best of what it can do, without looking ahead.

That is a launch whose inputs are there, else the computation with the highest priority. A wait is only issued once its
transfer is over or nothing else is left to run.
"""

import heapq
from collections.abc import Sequence

from annopipe.ordering.problem import OverlapProblem

__all__ = ["greedy_order", "path_lengths"]


def path_lengths(problem: OverlapProblem, transfer_weight: float = 1.0) -> list[float]:
    """Seconds from the start of each node to the end of the longest chain behind it, with transfers as weighed."""
    longest = [0.0] * len(problem.nodes)
    for node in reversed(problem.nodes):
        behind = max((longest[user] for user in problem.successors[node.index]), default=0.0)
        own = node.issue + node.cost * transfer_weight if node.kind == "launch" else node.cost
        longest[node.index] = behind + own
    return longest


def greedy_order(problem: OverlapProblem, priority: Sequence[float]) -> list[int]:
    """The greedy schedule under one priority per node, higher first; one transfer after the other on each link."""
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
