"""A search of the repeating-block kind (Tessel's idea): the best pattern that repeats, then what is before and behind.

For a layout, one microbatch is placed so that copies of it, each a period later, never meet on a rank: each action at
the earliest time that is free in the period, in several sequences. The shortest period for which that works within the
memory is taken, and the ends are completed by letting everything begin as early as its order allows.
"""

import math
from collections.abc import Iterator, Sequence

from annopipe.errors import ScheduleError
from annopipe.scheduling.action_costs import ActionCosts
from annopipe.scheduling.placement import Placement
from annopipe.scheduling.schedule_class import Schedule
from annopipe.tuning.families import families
from annopipe.tuning.layout import Layout
from annopipe.tuning.partition import balanced
from annopipe.tuning.stage_costs import action_costs
from annopipe.tuning.workload import Workload

__all__ = ["repeating_step"]

_ROUNDING = 1e-9
_LONGER = 1.02
_PERIODS = 60
Placed = dict[tuple[str, int], float]  # kind and stage: when it begins


def repeating_step(work: Workload, *, copies: int = 2) -> float:
    """The shortest step over the layouts of the search; infinite where no pattern repeats, as with one loss of all.

    >>> from annopipe.tuning.layers import Layer
    >>> repeating_step(Workload((Layer(1.0, 1.0, 1.0),) * 4, ranks=2, microbatches=8))
    48.0
    """
    if work.batch_wide:
        return math.inf
    best = math.inf
    for family in families(work, copies=copies):
        for layout in Layout.variants(work, family.placement, balanced(work, family)):
            best = min(best, _step(work, layout))
    return best


def _step(work: Workload, layout: Layout) -> float:
    """Of one layout: the first period, from the busiest rank's work up, whose pattern keeps to the memory."""
    costs, placement = action_costs(work, layout), layout.placement
    seconds = {(kind, stage): costs.times(kind, stage, 1)[0] for kind in "FIW" for stage in range(placement.stages)}
    period = max(math.fsum(seconds[kind, stage] for kind in "FIW" for stage in own) for own in placement.stages_on)
    for turn in range(_PERIODS):
        steps = []
        for weights_last in (False, True):
            pattern = _pattern(placement, seconds, period, work.latency + work.message, weights_last=weights_last)
            if pattern:
                steps.append(_simulated(work, placement, costs, pattern, period))
        if steps and min(steps) < math.inf:
            return min(steps)
        period *= _LONGER if turn < _PERIODS // 2 else _LONGER**3
    return math.inf


def _pattern(
    placement: Placement, seconds: Placed, period: float, on_way: float, *, weights_last: bool
) -> Placed | None:
    """Where each action of one microbatch (of each copy) begins; None where one finds no place."""
    taken: list[list[tuple[float, float]]] = [[] for _ in range(placement.ranks)]
    begins: Placed = {}
    down = sorted(range(placement.stages), key=lambda stage: placement.depth_of[stage])
    sequence = [("F", stage) for stage in down]
    backward = [("I", stage) for stage in reversed(down)]
    weights = [("W", stage) for stage in reversed(down)]
    in_turn = [each for both in zip(backward, weights, strict=True) for each in both]
    sequence += [*backward, *weights] if weights_last else in_turn
    for kind, stage in sequence:
        rank, ready = placement.rank_of[stage], 0.0
        for other, source in _needs(placement, kind, stage):
            apart = on_way if placement.rank_of[source] != rank else 0.0
            ready = max(ready, begins[other, source] + seconds[other, source] + apart)
        own = seconds[kind, stage]
        begin = _place(taken[rank], ready, own, period)
        if begin is None:
            return None
        begins[kind, stage] = begin
        taken[rank].append((begin % period, own))
    return begins


def _needs(placement: Placement, kind: str, stage: int) -> Iterator[tuple[str, int]]:
    if kind == "F":
        yield from (("F", source) for source in placement.predecessors[stage])
    else:
        yield "F" if kind == "I" else "I", stage
    if kind == "I":
        yield from (("I", source) for source in placement.successors[stage])


def _place(taken: Sequence[tuple[float, float]], ready: float, own: float, period: float) -> float | None:
    """The earliest begin at which an action meets no other of its rank in any period."""
    if own <= 0.0:
        return ready
    for wait in sorted([0.0, *((begin + length - ready) % period for begin, length in taken)]):
        at = (ready + wait) % period
        if all(
            min((begin - at) % period, period - _ROUNDING) >= own - _ROUNDING
            and (at - begin + _ROUNDING) % period >= length - _ROUNDING
            for begin, length in taken
            if length > 0.0
        ):
            return ready + wait
    return None


def _simulated(work: Workload, placement: Placement, costs: ActionCosts, pattern: Placed, period: float) -> float:
    """The step of all microbatches in the order of the pattern; infinite where they need more memory."""
    rows: list[list[tuple[float, float, str]]] = [[] for _ in range(placement.ranks)]
    for (kind, stage), begin in pattern.items():
        for turn, microbatch in enumerate(placement.microbatches_of(stage, work.microbatches)):
            at = begin + turn * period
            rows[placement.rank_of[stage]].append((round(at, 9), "FIW".index(kind), f"{stage}{kind}{microbatch}"))
    try:
        schedule = Schedule.of(placement, work.microbatches, [[text for *_, text in sorted(row)] for row in rows])
        timeline = schedule.simulated(costs)
    except ScheduleError:
        return math.inf
    fits = work.memory is None or max(timeline.peaks) <= work.memory * (1 + _ROUNDING)
    return timeline.makespan if fits else math.inf
