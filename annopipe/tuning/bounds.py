"""What no schedule of a workload can beat, whatever its stages, its placement and its order."""

import itertools
import math

from annopipe.tuning.workload import Workload

__all__ = ["lower_bound"]


def lower_bound(work: Workload, *, copies: int = 2) -> float:
    """The unit of the workload's times in which no step ends: the largest of three bounds.

    All ranks together do all the work, and a rank begins when the layers before its first one have run; the longest
    layer is on as many ranks as there are copies of the model; one microbatch goes there and back. Communication inside
    layers counts as hidden.

    >>> from annopipe.tuning.layers import Layer
    >>> work = Workload((Layer(1.0, 1.0, 1.0),) * 4, ranks=2, microbatches=4)
    >>> lower_bound(work, copies=1), lower_bound(work, copies=2)
    (24.5, 24.0)
    """
    fastest = max(work.speeds)
    begins = _begins(work, fastest)
    longest = [
        begin + math.ceil(work.microbatches / copies) * max(layer.work / fastest, 2.0 * layer.comm)
        for begin, layer in zip(begins, work.all_layers, strict=True)
    ]
    shared = (work.microbatches * work.work + _late(work, begins, copies)) / math.fsum(work.speeds)
    return max(shared, *longest, max(begins) + _longest_way_back(work, fastest))


def _begins(work: Workload, fastest: float) -> list[float]:
    """When each layer begins at the earliest, in the order of the layers."""
    ends = [math.fsum(layer.F for layer in tower) / fastest for tower in work.towers]
    starts = [0.0] * len(work.towers) + [max(ends, default=0.0)]
    found: list[float] = []
    for start, chain in zip(starts, work.chains, strict=True):
        found += list(itertools.accumulate((layer.F / fastest for layer in chain), initial=start))[:-1]
    return found


def _late(work: Workload, begins: list[float], copies: int) -> float:
    """Work that is not done because ranks cannot begin: no two of them begin with the same layer of one copy.

    A rank of speed s that begins at t leaves s * t undone; the fastest ranks begin first.
    """
    earliest = sorted(begins * copies)[: work.ranks]
    return math.fsum(speed * begin for speed, begin in zip(sorted(work.speeds, reverse=True), earliest, strict=True))


def _longest_way_back(work: Workload, fastest: float) -> float:
    """From the begin of the last layer to the end of the last backward-input."""
    backs = [math.fsum(layer.I for layer in chain) / fastest for chain in work.chains]
    return work.layers[-1].F / fastest + backs[-1] + max(backs[:-1], default=0.0)
