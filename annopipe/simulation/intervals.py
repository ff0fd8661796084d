"""Arithmetic on time intervals: pairs of start and end, in seconds."""

import math
from collections.abc import Iterable

__all__ = ["Interval", "length", "merge"]

Interval = tuple[float, float]


def merge(intervals: Iterable[Interval]) -> list[Interval]:
    """The same points in time as disjoint intervals in order; empty intervals are dropped.

    >>> merge([(4.0, 5.0), (0.0, 2.0), (1.0, 3.0), (5.0, 5.0)])
    [(0.0, 3.0), (4.0, 5.0)]
    """
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if end <= start:
            continue
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def length(intervals: Iterable[Interval]) -> float:
    """Total length of intervals that do not overlap.

    >>> length([(0.0, 3.0), (4.0, 5.0)])
    4.0
    """
    return math.fsum(end - start for start, end in intervals)
