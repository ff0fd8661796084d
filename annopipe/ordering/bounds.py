"""Lower bounds: no order can be faster than these."""

from typing import Any

from annopipe.ordering.problem import OverlapProblem

__all__ = ["CLOSE", "LowerBound", "lower_bound"]

_ROUNDING = 1e-9
CLOSE = 1.002  # of the lower bound: nothing is left to gain that anybody would notice


class LowerBound(float):
    """Seconds that no order of a graph can beat: the largest of three bounds, which it also carries.

    computation: all the work of the issuing thread.  communication: all the work of the busiest link.
    critical_path: the longest chain of nodes that need each other, transfers included.
    """

    computation: float
    communication: float
    critical_path: float

    def __new__(cls, computation: float, communication: float, critical_path: float) -> "LowerBound":
        """The largest of the three."""
        self = super().__new__(cls, max(computation, communication, critical_path))
        self.computation, self.communication, self.critical_path = computation, communication, critical_path
        return self

    def of_order(self, makespan: float) -> "LowerBound":
        """The same, without what only the rounding of sums puts above the makespan of an order that reaches it."""
        parts = (self.computation, self.communication, self.critical_path)
        return LowerBound(*(makespan if makespan < part <= makespan * (1 + _ROUNDING) else part for part in parts))

    def __getnewargs__(self) -> Any:  # what copies are made from
        return self.computation, self.communication, self.critical_path


def lower_bound(problem: OverlapProblem) -> LowerBound:
    """The lower bound on the makespan of every legal order of ``problem``."""
    computation = sum(node.thread_time for node in problem.nodes)
    work: dict[str, float] = {}
    one_by_one = problem.network.in_flight == 1 and not _several_queues(problem)
    for node in problem.nodes:
        if node.kind == "launch":
            link = "" if problem.network.shared_link else node.queue
            # With one transfer at a time the latencies add up too; with more they may pass while others move.
            spent = node.cost if one_by_one else node.cost - node.latency
            work[link] = work.get(link, 0.0) + spent
    finished: list[float] = []
    for node, earlier in zip(problem.nodes, problem.dependencies, strict=True):
        start = max((finished[source] for source in earlier), default=0.0)
        if node.kind == "wait":
            finished.append(max(start, finished[node.launch] + problem.nodes[node.launch].cost))
        else:
            finished.append(start + node.thread_time)
    alone = [f + node.cost for f, node in zip(finished, problem.nodes, strict=True) if node.kind == "launch"]
    return LowerBound(computation, max(work.values(), default=0.0), max([*finished, *alone], default=0.0))


def _several_queues(problem: OverlapProblem) -> bool:
    return problem.network.shared_link and len({n.queue for n in problem.nodes if n.kind == "launch"}) > 1
