"""``alternate``: the lanes take turns; a turn ends at a launch, so that the next lane's computation hides the transfer.

    B  ==launch        ==launch           ====
    F          ==launch        ====launch        (no costs needed)

An exchange of counts does not end a turn: the host reads its result before the lane can launch the data, and the
message is small. The exchanges of nano-batches come together where only a router is in between.
"""

from collections import deque

from annopipe.ordering.adjustments import waits_late
from annopipe.ordering.host_reads import counts_early, counts_together
from annopipe.ordering.problem import OverlapProblem

__all__ = ["alternate"]


def alternate(problem: OverlapProblem) -> list[int]:
    """Lanes in turn, each in program order with its waits late, up to and including its next launch."""
    queues: dict[str, deque[int]] = {lane: deque() for lane in problem.lanes}
    for index in waits_late(problem, range(len(problem.nodes))):
        queues[problem.nodes[index].lane].append(index)
    missing = [len(earlier) for earlier in problem.dependencies]
    order: list[int] = []
    while any(queues.values()):
        for queue in queues.values():
            while queue and missing[queue[0]] == 0:
                index = queue.popleft()
                order.append(index)
                for user in problem.successors[index]:
                    missing[user] -= 1
                if problem.nodes[index].kind == "launch" and index not in problem.count_exchanges:
                    break
    return counts_early(problem, counts_together(problem, order))
