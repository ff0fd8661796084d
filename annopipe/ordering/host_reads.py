"""Host reads and the small messages that they wait for: exchanges of counts.

A dropless layer first tells every rank how many rows it will get; the host reads that, and only then can the rows be
launched. Such an exchange is worth launching the moment it can be, since everything behind it waits. It carries
integers: a combine is none, although the next layer's router, which the host reads, needs its result.
"""

from collections.abc import Sequence

from annopipe.ordering.problem import OverlapProblem

__all__ = ["counts_early"]


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
