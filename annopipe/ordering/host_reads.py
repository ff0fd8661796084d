"""Host reads and the small messages that they wait for: exchanges of counts.

A dropless layer first tells every rank how many rows it will get; the host reads that, and only then can the rows be
launched. Such an exchange is worth launching the moment it can be, since everything behind it waits. It carries
integers: a combine is none, although the next layer's router, which the host reads, needs its result.

While the host waits it issues nothing. So the exchanges of several nano-batches come together, before any is read,
where only what is in the region around them (a router, say) is in between: what could hide the rows of the first
nano-batch, such as the attention of the second, is not moved ahead of them.
"""

from collections import deque
from collections.abc import Mapping, Sequence

from annopipe.ordering.problem import OverlapProblem

__all__ = ["counts_early", "counts_together", "counts_together_if_no_slower"]

_SAME = 1.0 + 1e-12  # rounding


def counts_early(problem: OverlapProblem, order: Sequence[int]) -> list[int]:
    """The order with every exchange of counts moved to just behind the last node that must come before it.

    So when the host reads the counts of one lane, those of every other lane that can be underway are: no read comes
    before an exchange that could have been issued. Exchanges of data keep their sequence.
    """
    place = {index: float(position) for position, index in enumerate(order)}
    keys = dict(place)
    for index in order:
        if index in problem.count_exchanges:
            # Behind what it needs where that now is: inputs may be exchanges of counts themselves.
            keys[index] = min(
                place[index], max((keys[source] for source in problem.dependencies[index]), default=-1) + 0.5
            )
    return sorted(order, key=lambda index: (keys[index], place[index]))


def counts_together(problem: OverlapProblem, order: Sequence[int]) -> list[int]:
    """The order in which a wait for counts has the exchanges of other lanes, and what they need, before it."""
    place = {index: position for position, index in enumerate(order)}
    keys = {index: float(position) for index, position in place.items()}
    exchanges: dict[str, deque[int]] = {}
    for index in order:
        if index in problem.count_exchanges:
            exchanges.setdefault(problem.nodes[index].lane, deque()).append(index)
    for wait in order if len(exchanges) > 1 else ():
        node = problem.nodes[wait]
        if node.kind != "wait" or node.launch not in problem.count_exchanges:
            continue
        for lane, left in exchanges.items():
            while left and keys[left[0]] < keys[wait]:
                left.popleft()
            if left and lane != node.lane:
                needed = _missing(problem, left[0], keys, keys[wait])
                keys.update(dict.fromkeys(needed, keys[wait] - 0.5))
    return sorted(order, key=lambda index: (keys[index], place[index]))


def counts_together_if_no_slower(problem: OverlapProblem, order: list[int]) -> list[int]:
    """The order with the exchanges of counts together, if its simulated time is no longer for it."""
    together = counts_together(problem, order)
    no_slower = together == order or problem.makespan(together) <= problem.makespan(order) * _SAME
    return together if no_slower else order


def _missing(problem: OverlapProblem, exchange: int, keys: Mapping[int, float], now: float) -> list[int]:
    """The exchange and what it needs that is not issued by now; nothing if that is more than its surroundings have."""
    around = problem.nodes[exchange].region.rpartition("/")[0]
    found, pending = {exchange}, [exchange]
    while pending:
        for source in problem.dependencies[pending.pop()]:
            if keys[source] < now or source in found:
                continue
            node = problem.nodes[source]
            if node.kind != "compute" or not f"{node.region}/".startswith(f"{around}/" if around else ""):
                return []
            found.add(source)
            pending.append(source)
    return list(found)
