"""``search``: the shortest order of all policies and of a long search, within a limit on memory if one is given.

The search grows partial orders side by side (``annopipe.ordering.search``), which finds a proven optimum for most
problems of a few dozen tasks, and orders windows of large problems anew. Its work is counted in partial orders, so that
every rank and every call finds the same order.
"""

import dataclasses
import math
from collections.abc import Iterator

from annopipe.errors import OrderError
from annopipe.ordering.bounds import CLOSE, lower_bound
from annopipe.ordering.builtin_policies.auto import nano_batches_lose
from annopipe.ordering.builtin_policies.candidates import NAMED, SAME, named_orders, reason_for
from annopipe.ordering.host_reads import counts_together_if_no_slower
from annopipe.ordering.problem import OverlapProblem, ReasonedOrder
from annopipe.ordering.registry import PolicyWithOptions
from annopipe.ordering.search.deadline import Deadline
from annopipe.ordering.search.exploring import Explored, briefly_explored, explored, leanest

__all__ = ["Search", "search"]


@dataclasses.dataclass(frozen=True)
class Search(PolicyWithOptions):
    """Policy ``search`` with other options: ``ap.overlap(graph, policy=ap.Search(seed=1))``.

    Args:
        seed: of its random numbers.
        steps: partial orders that are made at most, about, after the search of ``auto``; with the default a large graph
            takes 2 to 4 seconds.
        memory_bytes: the most bytes that may be live at a time (``plan.problem.peak_bytes``): activations, tangents and
            what the graph makes; parameters and buffers do not count. The peak is that of one execution of the graph.
        time_limit_s: stop after so many seconds, too. This gives up that every call finds the same order, so where
            several ranks run the graph, ``ap.overlap`` wants their ``group`` and takes the order of its first rank.

    Raises OrderError for options that are no limits, and when called: where no order is found within ``memory_bytes``,
    with the least that is possible.

    >>> print(Search(), Search(seed=1))
    search search(seed=1)
    """

    seed: int = 0
    steps: int = 150_000
    memory_bytes: int | None = None
    time_limit_s: float | None = None

    def __post_init__(self) -> None:
        """Refuse what is no seed and no limit."""
        whole = isinstance(self.seed, int) and isinstance(self.steps, int)
        if not whole or self.steps < 1:
            raise OrderError(f"Search(seed={self.seed!r}, steps={self.steps!r}): give whole numbers, steps from 1 on")
        if self.memory_bytes is not None and not (isinstance(self.memory_bytes, int) and self.memory_bytes > 0):
            raise OrderError(f"Search(memory_bytes={self.memory_bytes!r}): give bytes as a whole number, more than 0")
        if self.time_limit_s is not None and not self.time_limit_s > 0:
            raise OrderError(f"Search(time_limit_s={self.time_limit_s!r}): give seconds, more than 0")

    @property
    def name(self) -> str:
        """The policy's name."""
        return "search"

    @property
    def is_repeatable(self) -> bool:
        """Whether the clock has no say."""
        return self.time_limit_s is None

    def __call__(self, problem: OverlapProblem) -> ReasonedOrder:
        """The shortest order that was found; needs costs, and with a memory limit ``values``."""
        deadline = None if self.time_limit_s is None else Deadline.after(self.time_limit_s)
        orders = {name: order for name, order in named_orders(problem).items() if self._allows(problem, order)}
        proven = False
        for found in self._searches(problem, deadline):
            if found is not None and self._allows(problem, found.order):
                before = orders.get("search", found.order)
                orders["search"] = min(found.order, before, key=problem.makespan)
                proven = proven or found.proven
            shortest = min((problem.makespan(order) for order in orders.values()), default=math.inf)
            if (found is not None and found.settled) or shortest <= lower_bound(problem) * CLOSE:
                break
        if not orders:
            orders["leanest"] = self._leanest(problem)
        spans = {name: problem.makespan(order) for name, order in orders.items()}
        chosen = next(iter(spans))
        for name, seconds in spans.items():
            chosen = name if seconds < spans[chosen] * SAME else chosen
        if chosen != "sequential":
            together = counts_together_if_no_slower(problem, orders[chosen])
            orders[chosen] = together if self._allows(problem, together) else orders[chosen]
        spans.setdefault("sequential", problem.makespan(range(len(problem.nodes))))
        return ReasonedOrder(orders[chosen], self._reason(problem, orders[chosen], chosen, spans, proven=proven))

    def _searches(self, problem: OverlapProblem, deadline: Deadline | None) -> Iterator[Explored | None]:
        """First the search of ``auto``, so that this policy is never worse: a long one need not find what it found."""
        policies, most_bytes = tuple(NAMED.values()), self.memory_bytes
        yield briefly_explored(problem, policies, most_bytes=most_bytes, deadline=deadline)
        yield explored(problem, policies, work=self.steps, seed=self.seed, most_bytes=most_bytes, deadline=deadline)

    def _reason(
        self, problem: OverlapProblem, order: list[int], chosen: str, spans: dict[str, float], *, proven: bool
    ) -> str:
        reason = reason_for(problem, order, chosen, spans, proven=proven)
        reason = "; ".join(filter(None, (reason, nano_batches_lose(problem, spans[chosen]))))
        if self.memory_bytes is None:
            return reason
        limit = f"{problem.peak_bytes(order):,} bytes live, of memory_bytes={self.memory_bytes:,}"
        return f"{reason}; {limit}, which other orders may exceed"

    def _allows(self, problem: OverlapProblem, order: list[int]) -> bool:
        return self.memory_bytes is None or problem.peak_bytes(order) <= self.memory_bytes

    def _leanest(self, problem: OverlapProblem) -> list[int]:
        """The order that holds least, if that is within the limit."""
        orders = [leanest(problem), *named_orders(problem).values()]
        least = min(orders, key=problem.peak_bytes)
        if not self._allows(problem, least):
            possible, of_program = (problem.peak_bytes(order) for order in (least, range(len(problem.nodes))))
            raise OrderError(
                f"no order found that holds at most memory_bytes={self.memory_bytes:,}: the leanest found holds "
                f"{possible:,} bytes, program order {of_program:,}; allow {possible:,} or more, or trace with "
                "recompute= so that less is kept"
            )
        return least


search = Search()
