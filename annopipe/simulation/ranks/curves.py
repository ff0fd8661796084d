"""The memory of a rank as a curve."""

from collections.abc import Sequence
from itertools import groupby

__all__ = ["settled"]


def settled(steps: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The steps of a curve without what has no width: of steps at the same time the last stays.

    A higher one stays too, since it may be the peak; a step to the amount that is held anyway goes.

    >>> settled([(0.0, 1.0), (2.0, 0.0), (2.0, 1.0), (3.0, 2.0), (4.0, 3.0), (4.0, 2.0)])
    [(0.0, 1.0), (3.0, 2.0), (4.0, 3.0), (4.0, 2.0)]
    """
    found: list[tuple[float, float]] = []
    for time, group in groupby(steps, key=lambda step: step[0]):
        amounts = [amount for _, amount in group]
        before = found[-1][1] if found else 0.0
        if max(amounts) > max(before, amounts[-1]):
            found.append((time, max(amounts)))
        if not found or found[-1][1] != amounts[-1]:
            found.append((time, amounts[-1]))
    return found
