"""The unit of time of a schedule: simple costs make every start and end a whole number of units."""

from collections.abc import Iterable

from annopipe.simulation.ranks.pictured import Pictured

__all__ = ["common_unit", "time_unit"]

_ROUNDING, _FINEST = 1e-9, 1e-5


def time_unit(timeline: Pictured) -> float | None:
    """The longest time of which all starts and ends are multiples; None where there is none worth the name."""
    return common_unit(time for row in timeline.spans for span in row for time in (span.start, span.end))


def common_unit(values: Iterable[float]) -> float | None:
    """The largest number of which all values are multiples, up to rounding; None below a 1e-5 of the largest value.

    >>> common_unit([0.0, 1.5, 2.0, 3.5]), common_unit([1.0, 2**0.5]), common_unit([])
    (0.5, None, None)
    """
    distinct = sorted(set(values), reverse=True)
    if not distinct or distinct[0] <= 0:
        return None
    tiny, finest = distinct[0] * _ROUNDING, distinct[0] * _FINEST
    unit = 0.0
    for value in distinct:
        # Euclid's algorithm; the nearest multiple, so that 2.9999999 of a unit counts as 3.
        larger, smaller = max(unit, value), min(unit, value)
        while smaller > tiny:
            larger, smaller = smaller, abs(larger - round(larger / smaller) * smaller)
        unit = larger
        if unit < finest:
            return None
    return unit
