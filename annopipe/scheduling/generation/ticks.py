"""Times as whole numbers, so that what happens at the same time compares equal, on every machine."""

import math
from collections.abc import Iterable
from fractions import Fraction

__all__ = ["Ticks"]


class Ticks:
    """A unit of which every given time is a whole multiple.

    >>> ticks = Ticks([0.1, 0.25, 1.0])
    >>> ticks.of(0.1), ticks.of(0.25), ticks.of(1.0)
    (2, 5, 20)
    """

    def __init__(self, times: Iterable[float]) -> None:
        # As written: 0.1 is a tenth, not the binary fraction nearest to it.
        exact = {time: Fraction(repr(float(time))) for time in set(times)}
        self._per_unit = math.lcm(*(fraction.denominator for fraction in exact.values()))
        self._ticks = {time: int(fraction * self._per_unit) for time, fraction in exact.items()}

    def of(self, time: float) -> int:
        """A time, one of those given, in ticks."""
        return self._ticks[time]

    def seconds(self, ticks: int) -> float:
        """The inverse of `of`."""
        return float(Fraction(ticks, self._per_unit))
