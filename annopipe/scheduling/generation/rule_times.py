"""How long the actions of a specification take for the generator, in whole ticks where that is possible.

A full backward that has no time of its own is I and then W, a combination without one its parts: ticks are added, so
that 0.1 and 0.2 are 0.3. Operations that the rank itself carries out beside a computation belong to it.
"""

from itertools import chain

from annopipe.scheduling.actions import COMPUTE, Action, overlap
from annopipe.scheduling.generation.spec_fields import SpecFields
from annopipe.scheduling.generation.ticks import Tick, Ticks

__all__ = ["RuleTimes"]


class RuleTimes:
    """Times by number, as in `Numbering`; a pair is stage * microbatches + microbatch.

    Attributes:
        durations: F, B, I and W, with the operations that belong to them.
        delays: by pair, until the message of a stage arrives on another rank.
        seconds: the inverse of ticks.
    """

    def __init__(self, spec: SpecFields) -> None:
        self._costs, stages, self._m = spec.costs, spec.placement.stages, spec.microbatches
        self._block = stages * self._m
        costs, m = spec.costs, spec.microbatches
        by_kind = {
            kind: [time for stage in range(stages) for time in costs.times(kind, stage, m)]
            for kind in (*COMPUTE, "send")
            if kind != "B" or costs.B is not None
        }
        added = _operation_times(spec)
        self._by_stage = costs.overlap is None or costs.overlap_by_stage
        pairs = _pair_times(spec, spec.pair) if spec.pair and self._by_stage else {}
        ticks = Ticks(chain(*by_kind.values(), added.values(), pairs.values(), [costs.latency]))
        self._ticks = ticks
        in_ticks = {kind: ticks.all_of(times) for kind, times in by_kind.items()}
        if costs.B is None:
            in_ticks["B"] = [a + b for a, b in zip(in_ticks["I"], in_ticks["W"], strict=True)]
        self._computed = [time for kind in COMPUTE for time in in_ticks[kind]]
        self._added = {number: ticks.of(time) for number, time in added.items()}
        self.durations = self._computed
        if self._added:
            self.durations = [time + self._added.get(number, 0) for number, time in enumerate(self._computed)]
        latency = ticks.of(costs.latency)
        self.delays = [time + latency for time in in_ticks["send"]]
        self.seconds = ticks.seconds
        self._by_stages: dict[tuple[int, int], Tick] = {rows: ticks.of(time) for rows, time in pairs.items()}

    def combined(self, first: int, second: int) -> Tick:
        """The time of two numbers as one combination."""
        costs = self._costs
        if costs.overlap is None and (costs.FB is None or second // self._block != COMPUTE.index("B")):
            return self.durations[first] + self.durations[second]
        return self._together(first, second) + self._added.get(first, 0) + self._added.get(second, 0)

    def _together(self, first: int, second: int) -> Tick:
        rows = first // self._m, second // self._m
        if rows in self._by_stages:
            return self._by_stages[rows]
        time = self._ticks.of(self._costs.duration(overlap(self._action(first), self._action(second))))
        if self._by_stage:
            self._by_stages[rows] = time
        return time

    def _action(self, number: int) -> Action:
        kind, pair = divmod(number, self._block)
        return Action(COMPUTE[kind], *divmod(pair, self._m))


def _pair_times(spec: SpecFields, kinds: tuple[str, str]) -> dict[tuple[int, int], float]:
    """The times of combinations that depend on the stages alone, those that whole ticks are chosen for.

    By the row of each part: the position of its kind * stages + its stage.
    """
    costs, stages = spec.costs, spec.placement.stages
    if costs.overlap is None and (costs.FB is None or kinds != ("F", "B")):
        return {}
    first_row, second_row = (COMPUTE.index(kind) * stages for kind in kinds)
    return {
        (first_row + first, second_row + second): costs.duration(
            overlap(Action(kinds[0], first, 0), Action(kinds[1], second, 1))
        )
        for held in spec.placement.stages_on
        for first in held
        for second in held
    }


def _operation_times(spec: SpecFields) -> dict[int, float]:
    """By number, the times of the operations that a rank carries out before or after a computation."""
    added: dict[int, float] = {}
    m, stages = spec.microbatches, spec.placement.stages
    for operation in spec.operations:
        if operation.resource != "compute" or operation.per != "microbatch":
            continue
        for position, kind in enumerate(COMPUTE):
            for stage in range(stages):
                if kind in operation.anchors and operation.applies_to(stage):
                    for k in spec.placement.microbatches_of(stage, m):
                        number = (position * stages + stage) * m + k
                        added[number] = added.get(number, 0.0) + operation.time_of(stage, k, spec.costs)
    return added
