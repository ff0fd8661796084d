"""What no schedule of a workload can beat, whatever its stages, its placement and its order."""

import itertools
import math
from collections.abc import Sequence

from annopipe.tuning.layers import Layer
from annopipe.tuning.packing import packed_time
from annopipe.tuning.workload import Workload

__all__ = ["lower_bound"]


def lower_bound(work: Workload, *, copies: int = 2) -> float:
    """The unit of the workload's times in which no step ends: the largest of several bounds.

    All ranks together do all the work, in whole layers of one copy of the model, and a rank is idle until the layers
    before its first one have run, and between the last forward for which it has memory and its first backward; the
    longest layer is on as many ranks as there are copies; one microbatch goes there and back. Communication inside
    layers counts as hidden, but takes its own time, one message after the other. The sum of gradients at the end of a
    step is not in it.

    >>> from annopipe.tuning.layers import Layer
    >>> work = Workload((Layer(1.0, 1.0, 1.0),) * 4, ranks=2, microbatches=4)
    >>> lower_bound(work, copies=1), lower_bound(work, copies=2)
    (25.0, 24.0)
    """
    copies = 1 if work.batch_wide else copies  # a loss over the whole batch has all of it in one copy
    fastest = max(work.speeds)
    begins = _begins(work, fastest)
    longest = [
        begin + math.ceil(work.microbatches / copies) * max(layer.work / fastest, 2.0 * layer.comm)
        for begin, layer in zip(begins, work.all_layers, strict=True)
    ]
    idle = _idle(work, begins, fastest, copies)
    # The fastest ranks begin first. Where ranks are not alike, the packing counts no idle time.
    undone = zip(sorted(work.speeds, reverse=True), idle, strict=True)
    shared = (work.microbatches * work.work + math.fsum(s * t for s, t in undone)) / math.fsum(work.speeds)
    sent = 2.0 * work.microbatches * math.fsum(layer.comm for layer in work.all_layers) / work.ranks
    late = idle if min(work.speeds) == fastest else [0.0] * work.ranks
    # All microbatches of a layer of one copy are on one rank.
    shares = [(work.microbatches + copy) // copies for copy in range(copies)]
    pieces = [share * layer.work for layer in work.all_layers for share in shares]
    packed = packed_time(pieces, late, work.speeds)
    return max(shared, sent, packed, *longest, max(begins) + _longest_way_back(work, fastest))


def _begins(work: Workload, fastest: float) -> list[float]:
    """When each layer begins at the earliest, in the order of the layers."""
    ends = [math.fsum(layer.F for layer in tower) / fastest for tower in work.towers]
    starts = [0.0] * len(work.towers) + [max(ends, default=0.0)]
    found: list[float] = []
    for start, chain in zip(starts, work.chains, strict=True):
        found += list(itertools.accumulate((layer.F / fastest for layer in chain), initial=start))[:-1]
    return found


def _idle(work: Workload, begins: Sequence[float], fastest: float, copies: int) -> list[float]:
    """How long each rank is idle in any case, the shortest first: no two of them have a layer of one copy.

    Before its first layer has inputs; and with a limit on memory, before its first backward, except for the forwards
    that it has memory for. Layers that compute again keep less and take longer, on all microbatches of a copy.
    """
    first = _of_ranks(work, _inputs_arrive(work, begins), copies)
    if work.memory is None:
        return first
    arrive = _gradients_arrive(work, begins, fastest)
    filled = [_filled(work, layers, fastest) for layers in (work.all_layers, [x.recomputed() for x in work.all_layers])]
    again = [layer.recompute.costs for layer in work.all_layers if layer.recompute is not None]
    least = min(again, default=math.inf) * (work.microbatches // copies) / fastest
    waits = [max(0.0, min(at - filled[0], max(0.0, at - filled[1]) + least)) for at in arrive]
    return [max(*both) for both in zip(first, _of_ranks(work, waits, copies), strict=True)]


def _of_ranks(work: Workload, times: Sequence[float], copies: int) -> list[float]:
    """The smallest times of layers that can be on so many ranks."""
    return sorted(sorted(times) * copies)[: work.ranks]


def _inputs_arrive(work: Workload, begins: Sequence[float]) -> list[float]:
    """When a rank can have the inputs of a layer, if it has none of those before."""
    hop = _hop(work)
    no_inputs = {0, *itertools.accumulate(map(len, work.towers[:-1]))}
    return [begin if index in no_inputs else begin + hop for index, begin in enumerate(begins)]


def _hop(work: Workload) -> float:
    """The least time from one rank to another."""
    return work.latency + min(work.message if layer.message is None else layer.message for layer in work.all_layers)


def _gradients_arrive(work: Workload, begins: Sequence[float], fastest: float) -> list[float]:
    """When the first gradient of a layer's output can be on a rank that has none of the layers behind."""
    hop, found = _hop(work), list[float]()
    turn = begins[-1] + work.layers[-1].F / fastest
    top = turn + math.fsum(layer.I for layer in work.layers) / fastest
    for chain, at in (*((tower, top) for tower in work.towers), (work.layers, turn)):
        times = itertools.accumulate((layer.I / fastest for layer in reversed(chain[1:])), initial=at)
        found += [*times][::-1]
    return [at + hop * (index < len(found) - 1) for index, at in enumerate(found)]


def _filled(work: Workload, layers: Sequence[Layer], fastest: float) -> float:
    """The longest time for which forwards can fill the memory of a rank."""
    longest = max(
        (layer.F / layer.activation if layer.activation else math.inf for layer in layers if layer.F), default=0.0
    )
    return longest * (work.memory or 0.0) / fastest


def _longest_way_back(work: Workload, fastest: float) -> float:
    """From the begin of the last layer to the end of the last backward-input."""
    backs = [math.fsum(layer.I for layer in chain) / fastest for chain in work.chains]
    return work.layers[-1].F / fastest + backs[-1] + max(backs[:-1], default=0.0)
