"""``alternate``: the lanes take turns; a turn ends at a launch, so that the next lane's computation hides the transfer.

    B  ==launch        ==launch           ====
    F          ==launch        ====launch        (no costs needed)

An exchange of counts does not end a turn: the host reads its result before the lane can launch the data, and the
message is small.
"""

from collections import deque

from annopipe.ordering.adjustments import waits_late
from annopipe.ordering.problem import OverlapProblem
from annopipe.ordering.registry import policy

__all__ = ["alternate"]


@policy
def alternate(problem: OverlapProblem) -> list[int]:
    """Lanes in turn, each in program order with its waits late, up to and including its next launch."""
    queues: dict[str, deque[int]] = {lane: deque() for lane in problem.lanes}
    for index in waits_late(problem, range(len(problem.nodes))):
        queues[problem.nodes[index].lane].append(index)
    missing = [len(earlier) for earlier in problem.dependencies]
    for_host = _launches_for_the_host(problem)
    order: list[int] = []
    while any(queues.values()):
        for queue in queues.values():
            while queue and missing[queue[0]] == 0:
                index = queue.popleft()
                order.append(index)
                for user in problem.successors[index]:
                    missing[user] -= 1
                if problem.nodes[index].kind == "launch" and index not in for_host:
                    break
    return order


def _launches_for_the_host(problem: OverlapProblem) -> set[int]:
    """Launches whose result a host read of their lane needs before the lane's next launch."""
    last: dict[str, int] = {}  # the latest launch of each lane
    behind: dict[str, set[int]] = {}  # what depends on it
    found: set[int] = set()
    for node in problem.nodes:
        if node.kind == "launch":
            last[node.lane], behind[node.lane] = node.index, {node.index}
        elif node.lane in last and not behind[node.lane].isdisjoint(problem.dependencies[node.index]):
            behind[node.lane].add(node.index)
            if node.kind == "host":
                found.add(last[node.lane])
    return found
