"""What a step takes when gradients are summed over data-parallel ranks at its end, where nothing hides it."""

import math

from annopipe.simulation.ranks.timeline import ScheduleTimeline
from annopipe.tuning.layout import Layout
from annopipe.tuning.workload import Workload

__all__ = ["reduced_by_rank", "step_time"]


def reduced_by_rank(work: Workload, layout: Layout) -> list[float]:
    """How long each rank sums the gradients of its stages; a stage of which it has both copies counts once."""
    found = []
    for stages in layout.placement.stages_on:
        first = {layout.placement.weights_of[stage]: stage for stage in stages}
        layers = [layer for stage in first.values() for layer in layout.layers(work, stage)]
        found.append(math.fsum(layer.reduce for layer in layers))
    return found


def step_time(work: Workload, layout: Layout, timeline: ScheduleTimeline) -> float:
    """The end of the step: each rank sums its gradients when its last action has ended, while others may still work.

    >>> from annopipe.scheduling import placement
    >>> from annopipe.tuning.layers import Layer
    >>> from annopipe.tuning.partition import Family
    >>> from annopipe.tuning.trial import Trial
    >>> work = Workload((Layer(1.0, 1.0, 1.0, reduce=0.5),) * 2, ranks=2, microbatches=1)
    >>> trial = Trial(Family.of_chain(placement.linear(2)), Layout(placement.linear(2), ((0, 1), (1, 2))))
    >>> _, timeline = trial.simulated(work)
    >>> timeline.makespan, step_time(work, trial.layout, timeline)
    (5.0, 5.5)
    """
    ends = [timeline.ends[numbers[-1]] for numbers in timeline.computations]
    reduced = reduced_by_rank(work, layout)
    return max([timeline.makespan, *(end + own for end, own in zip(ends, reduced, strict=True) if own)])
