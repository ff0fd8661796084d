"""Times as whole numbers, so that what happens at the same time compares equal, on every machine."""

import math
from collections.abc import Iterable
from fractions import Fraction

__all__ = ["Tick", "Ticks"]

Tick = int | Fraction


class Ticks:
    """A unit of which every given time is a whole multiple; other times are exact fractions of it.

    >>> ticks = Ticks([0.1, 0.25, 1.0])
    >>> ticks.of(0.1), ticks.of(0.25), ticks.of(1.0), ticks.of(0.125)
    (2, 5, 20, Fraction(5, 2))
    """

    def __init__(self, times: Iterable[float]) -> None:
        exact = {time: _as_written(time) for time in set(times)}
        self._per_unit = math.lcm(*(fraction.denominator for fraction in exact.values()))
        self._ticks = {time: int(fraction * self._per_unit) for time, fraction in exact.items()}

    def of(self, time: float) -> Tick:
        """A time in ticks."""
        found = self._ticks.get(time)
        return _as_written(time) * self._per_unit if found is None else found

    def all_of(self, times: Iterable[float]) -> list[Tick]:
        """Many times, all of those given."""
        return [*map(self._ticks.__getitem__, times)]

    def seconds(self, ticks: Tick) -> float:
        """The inverse of `of`."""
        return float(Fraction(ticks, self._per_unit))


def _as_written(time: float) -> Fraction:
    """A tenth for 0.1, not the binary fraction nearest to it."""
    return Fraction(repr(float(time)))
