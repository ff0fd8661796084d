"""A line through measured times: latency, and bytes over bandwidth, robust against single sizes that were disturbed.

What is small is the sum of deviations, each divided by the root of the time, so that neither the smallest nor the
largest messages alone decide; and one size that was disturbed does not tilt the line, as it would with squares.
"""

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from annopipe.errors import CostError

__all__ = ["Line", "fitted"]

_TURNS = 50
_CLOSE = 1e-6  # deviations below that, as a share, are alike


@dataclass(frozen=True, slots=True)
class Line:
    """How long messages take.

    latency_s: of a message of no bytes.
    bandwidth: bytes per second that each byte more adds at.
    residual, worst: by how much the measured times deviate from the line, as a share of them: median and largest.

    >>> round(Line(latency_s=1e-3, bandwidth=1e9).seconds(4_000_000), 9)
    0.005
    """

    latency_s: float
    bandwidth: float
    residual: float = 0.0
    worst: float = 0.0

    def __str__(self) -> str:
        """The formula, in units that are easy to read.

        >>> str(Line(latency_s=2e-4, bandwidth=12.5e6, residual=0.01))
        '200 us + bytes / 12.5 MB/s (deviation 1.0%)'
        """
        return (
            f"{self.latency_s * 1e6:.3g} us + bytes / {self.bandwidth / 1e6:.3g} MB/s (deviation {self.residual:.1%})"
        )

    def seconds(self, size_bytes: float) -> float:
        """What a message of so many bytes takes."""
        return self.latency_s + size_bytes / self.bandwidth


def fitted(times: Mapping[int, float]) -> Line:
    """The line through seconds by bytes.

    Raises CostError for fewer than 2 sizes, and for times that do not grow with the size.

    >>> line = fitted({0: 0.001, 1000: 0.002, 2000: 0.003, 3000: 0.9, 4000: 0.005})  # one was disturbed
    >>> round(line.latency_s, 6), round(line.bandwidth)
    (0.001, 1000000)
    """
    if len(times) < 2 or any(not 0.0 < seconds < math.inf for seconds in times.values()):
        raise CostError(f"times by size are {dict(times)}: give 2 sizes or more, with positive finite seconds")
    sizes, seconds = list(times), list(times.values())
    weights = [1.0 / time for time in seconds]
    latency = per_byte = 0.0
    for _ in range(_TURNS):
        latency, per_byte = _weighted(sizes, seconds, weights)
        off = _deviations(sizes, seconds, latency, per_byte)
        weights = [1.0 / (time**1.5 * max(share, _CLOSE)) for share, time in zip(off, seconds, strict=True)]
    if per_byte <= 0.0:
        raise CostError(
            f"a message of {max(sizes)} bytes takes no longer than one of {min(sizes)}, so these sizes tell no "
            "bandwidth: measure larger ones, or on a machine that is less busy"
        )
    off = _deviations(sizes, seconds, latency, per_byte)
    return Line(latency, 1.0 / per_byte, statistics.median(off), max(off))


def _deviations(sizes: list[int], seconds: list[float], latency: float, per_byte: float) -> list[float]:
    return [abs(latency + per_byte * size - time) / time for size, time in zip(sizes, seconds, strict=True)]


def _weighted(sizes: list[int], seconds: list[float], weights: list[float]) -> tuple[float, float]:
    """Latency and seconds per byte with the least weighted squares of deviations; no latency below 0."""
    rows = list(zip(weights, sizes, seconds, strict=True))
    one, size = math.fsum(weights), math.fsum([w * s for w, s, _ in rows])
    time, square = math.fsum([w * t for w, _, t in rows]), math.fsum([w * s * s for w, s, _ in rows])
    product = math.fsum([w * s * t for w, s, t in rows])
    divisor = one * square - size * size
    per_byte = (one * product - size * time) / divisor if divisor > 0.0 else 0.0
    latency = (time - per_byte * size) / one
    return (latency, per_byte) if latency >= 0.0 else (0.0, product / square)
