"""How short the busiest rank's work can be when layers are whole: a packing of weights into ranks, as a lower bound."""

import math
import operator
from collections import Counter
from collections.abc import Collection, Iterator, Sequence

__all__ = ["packed_time"]

_PRECISION = 1e-10
_STATES = 5_000  # how much of each weight may be left: beyond so many, weights are made alike
_ROUNDING = 1e-9

Counts = tuple[int, ...]
Kinds = tuple[float, ...]


def packed_time(weights: Sequence[float], late: Sequence[float], speeds: Sequence[float]) -> float:
    """The earliest time at which bins can hold these weights; less than that is not possible, whatever goes where.

    Args:
        weights: what has to be done, each in one piece.
        late: when each bin begins.
        speeds: of each bin.

    >>> round(packed_time([1.0] * 7, late=[0.0, 0.5, 0.5], speeds=[1.0] * 3), 6)  # 7 on 3 bins: one has 3
    3.0
    """
    counts = _merged(weights)
    kinds = tuple(sorted(counts, reverse=True))
    numbers = tuple(counts[kind] for kind in kinds)
    total = math.fsum(kind * number for kind, number in counts.items())
    low, high = 0.0, max(late) + total / min(speeds)
    while high - low > _PRECISION * high:
        middle = (low + high) / 2
        if _fit(kinds, numbers, middle, late, speeds):
            high = middle
        else:
            low = middle
    return float(f"{high:.8g}") if math.isclose(float(f"{high:.8g}"), high, rel_tol=1.5 * _ROUNDING) else low


def _merged(weights: Sequence[float]) -> Counter[float]:
    """How often there is each weight; where a packing would take long, some are made lighter, which packs no worse."""
    kept = Counter(weight for weight in weights if weight > 0.0)
    kinds, found = sorted(kept, reverse=True), kept
    for most in range(len(kinds), 0, -1):
        size = math.ceil(len(kinds) / most)
        groups = [kinds[start : start + size] for start in range(0, len(kinds), size)]
        found = Counter({group[-1]: sum(kept[kind] for kind in group) for group in groups})
        if math.prod(number + 1 for number in found.values()) <= _STATES:
            return found
    return found


def _fit(kinds: Kinds, numbers: Counts, end: float, late: Sequence[float], speeds: Sequence[float]) -> bool:
    """Whether everything fits until a time: what the best fillings of the bins so far leave over, bin by bin."""
    left = {numbers}
    for at, speed in zip(late, speeds, strict=True):
        room = max(0.0, end - at) * speed * (1 + _ROUNDING)
        left = _least({rest for counts in left for rest in _rests(kinds, counts, room)})
        if len(left) == 1 and not any(next(iter(left))):
            return True
    return False


def _rests(kinds: Kinds, counts: Counts, room: float) -> Iterator[Counts]:
    """What a bin can leave of some counts when nothing more fits in; the last kind fills it up."""
    most = min(counts[0], math.floor(room / kinds[0])) if room > 0.0 else 0
    if len(kinds) == 1:
        yield (counts[0] - most,)
        return
    for taken in range(most + 1):
        for rest in _rests(kinds[1:], counts[1:], room - taken * kinds[0]):
            yield (counts[0] - taken, *rest)


def _least(found: Collection[Counts]) -> set[Counts]:
    """Those beside which no other leaves as little of every kind."""
    kept: list[Counts] = []
    for counts in sorted(found, key=lambda each: (sum(each), each)):
        if not any(all(map(operator.le, other, counts)) for other in kept):
            kept.append(counts)
    return set(kept)
