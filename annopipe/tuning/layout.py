"""Which layers each stage has, on which rank it is, and what it computes again."""

import functools
import math
from dataclasses import dataclass

from annopipe.scheduling.placement import Placement
from annopipe.tuning.layers import Layer
from annopipe.tuning.workload import Workload

__all__ = ["Bounds", "Layout"]

Bounds = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Layout:
    """The layers of a workload on stages, and the stages on ranks.

    Attributes:
        placement: of the stages.
        bounds: for each stage, its first layer and the one behind its last, counted over all chains.
        recomputed: for each stage, how many of its layers compute again what they can; () is none of any.
    """

    placement: Placement
    bounds: Bounds
    recomputed: tuple[int, ...] = ()

    @classmethod
    def variants(cls, work: Workload, placement: Placement, bounds: Bounds) -> "list[Layout]":
        """Nothing is computed again; and, where layers can do so, all of them do."""
        found = [cls(placement, bounds)]
        if any(layer.recompute for layer in work.all_layers):
            found.append(cls(placement, bounds, tuple(end - start for start, end in bounds)))
        return found

    def layers(self, work: Workload, stage: int) -> tuple[Layer, ...]:
        """The layers of a stage, as they are there: the first ones compute again.

        >>> from annopipe.scheduling import placement
        >>> work = Workload((Layer(1.0, 1.0, 1.0),) * 5, ranks=2, microbatches=1)
        >>> len(Layout(placement.linear(2), ((0, 3), (3, 5))).layers(work, 1))
        2
        """
        return _stage_layers(work, *self.bounds[stage], self.recomputed[stage] if self.recomputed else 0)

    def loads(self, work: Workload, *, hidden: bool = False) -> list[float]:
        """The time that an average microbatch takes on each rank.

        hidden: whether communication inside layers is hidden behind computation, as far as it can be.
        """
        placement = self.placement
        computing, sending = [0.0] * placement.ranks, [0.0] * placement.ranks
        for stage, rank in enumerate(placement.rank_of):
            share = len(placement.microbatches_of(stage, work.microbatches)) / work.microbatches
            layers = self.layers(work, stage)
            computing[rank] += share * math.fsum([layer.work for layer in layers]) / work.speeds[rank]
            sending[rank] += share * 2.0 * math.fsum([layer.comm for layer in layers])
        both = zip(computing, sending, strict=True)
        return [max(own, sent) if hidden else own + sent for own, sent in both]


@functools.lru_cache(maxsize=65536)
def _stage_layers(work: Workload, start: int, end: int, recomputed: int) -> tuple[Layer, ...]:
    found = list(work.all_layers[start:end])
    for index, layer in enumerate(found):
        if recomputed and layer.recompute is not None:
            found[index], recomputed = layer.recomputed(), recomputed - 1
    return tuple(found)
